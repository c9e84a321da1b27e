"""AsyncLLM with a scripted model: streams, cancellation and the end."""

import asyncio
import time
import unittest

import kun
from kun import AsyncEngineArgs, AsyncLLM, PoolingParams, RequestOutputKind, SamplingParams
from scripts import FAST, GREETING, SLOW, script_model
from test_llm import run_python

OPTIONS = {"kv_cache_memory_bytes": 1 << 22}


def params(kind=RequestOutputKind.CUMULATIVE, **fields):
    return SamplingParams(**{"temperature": 0, "max_tokens": 1700, "output_kind": kind, **fields})


async def collect(stream):
    return [output async for output in stream]


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=script_model(SLOW), **OPTIONS))

    async def asyncTearDown(self):
        self.llm.shutdown()

    async def test_cumulative_results_grow_to_the_whole(self):
        outputs = await collect(self.llm.generate("hi?", params(), "mine"))
        self.assertGreater(len(outputs), 3)
        texts = [output.outputs[0].text for output in outputs]
        for shorter, longer in zip(texts, texts[1:]):
            self.assertTrue(longer.startswith(shorter))
        self.assertEqual(texts[-1], GREETING)
        self.assertEqual([output.finished for output in outputs],
                         [False] * (len(outputs) - 1) + [True])
        self.assertEqual({output.request_id for output in outputs}, {"mine"})
        self.assertEqual(outputs[-1].outputs[0].finish_reason, "stop")

    async def test_deltas_add_up_to_the_whole(self):
        stream = self.llm.generate("hi?", params(RequestOutputKind.DELTA, logprobs=1, n=2))
        text, ids, logprobs = ["", ""], [[], []], [0, 0]
        async for output in stream:
            for completion in output.outputs:
                text[completion.index] += completion.text
                ids[completion.index] += completion.token_ids
                logprobs[completion.index] += len(completion.logprobs)
        self.assertEqual(text, [GREETING] * 2)
        self.assertEqual(ids, [[*GREETING.encode(), 256]] * 2)
        self.assertEqual(logprobs, [len(GREETING) + 1] * 2)

    async def test_final_only_is_one_result(self):
        outputs = await collect(self.llm.generate("hi?", params(RequestOutputKind.FINAL_ONLY)))
        self.assertEqual([output.outputs[0].text for output in outputs], [GREETING])

    async def test_hidden_states_come_in_one_result(self):
        raw = PoolingParams(normalize=False)
        (output,) = await collect(self.llm.encode("hi?", raw, "mine"))
        self.assertEqual(output.outputs.data, [ord("H"), 0.0])
        self.assertEqual((output.request_id, output.finished), ("mine", True))

    async def test_chat_streams_as_well(self):
        outputs = await collect(self.llm.chat([{"role": "user", "content": "hi?"}], params()))
        self.assertEqual(outputs[-1].prompt, "user: hi?\nassistant: ")
        self.assertEqual(outputs[-1].outputs[0].text, GREETING)

    async def test_many_tasks_share_the_engine_and_the_loop_goes_on(self):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        results = await asyncio.gather(
            *(collect(self.llm.generate(f"{i} forever?", params(max_tokens=150)))
              for i in range(40)))
        ticking.cancel()
        self.assertEqual([outputs[-1].prompt for outputs in results],
                         [f"{i} forever?" for i in range(40)])
        self.assertEqual({outputs[-1].outputs[0].text for outputs in results}, {"xy" * 75})
        self.assertGreater(ticks, 5)

    async def test_leaving_a_stream_cancels_its_request(self):
        stream = self.llm.generate("forever?", params())
        async for output in stream:
            self.assertFalse(output.finished)
            break
        await stream.aclose()
        await self.assert_idle()

    async def test_cancelling_a_task_cancels_its_request(self):
        task = asyncio.create_task(collect(self.llm.generate("forever?", params())))
        await asyncio.sleep(0.1)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await self.assert_idle()

    async def test_abort_ends_a_request_by_name(self):
        task = asyncio.create_task(collect(self.llm.generate("forever?", params(), "one")))
        await asyncio.sleep(0.1)
        with self.assertRaisesRegex(ValueError, "'one' is in use"):
            await collect(self.llm.generate("hi?", params(), "one"))
        await self.llm.abort("unknown")
        await self.llm.abort("one")
        with self.assertRaises(kun.CancelledError):
            await task
        await self.assert_idle()
        self.assertEqual(len(await collect(self.llm.generate(
            "hi?", params(RequestOutputKind.FINAL_ONLY), "one"))), 1)

    async def test_shutting_down_ends_the_streams(self):
        task = asyncio.create_task(collect(self.llm.generate("forever?", params())))
        await asyncio.sleep(0.1)
        self.llm.shutdown()
        with self.assertRaises(kun.CancelledError):
            await asyncio.wait_for(task, 5)
        with self.assertRaises(kun.UnavailableError):
            await collect(self.llm.generate("hi?", params()))

    async def test_errors_arrive_in_the_task(self):
        llm = AsyncLLM(script_model(FAST), **OPTIONS)
        with self.assertRaisesRegex(kun.InternalError, "the script says no"):
            await collect(llm.generate("error?", params()))
        with self.assertRaisesRegex(ValueError, "has 600 tokens"):
            await collect(llm.generate("x" * 600, params()))
        with self.assertRaisesRegex(kun.InternalError, "the script says no"):
            await collect(llm.encode("error?on"))
        with self.assertRaisesRegex(ValueError, "has 600 tokens"):
            await collect(llm.encode("x" * 600))
        llm.close()

    async def assert_idle(self):
        for _ in range(1000):
            if self.llm.stats()["running_count"] == 0:
                return
            await asyncio.sleep(0.005)
        self.fail("the request goes on")


class AsyncLifeTest(unittest.TestCase):
    def test_several_event_loops_may_use_one_engine(self):
        llm = AsyncLLM(script_model(FAST), **OPTIONS)
        for _ in range(2):
            outputs = asyncio.run(collect(llm.generate("hi?", params(max_tokens=99))))
            self.assertEqual(outputs[-1].outputs[0].text, GREETING)
        llm.shutdown()

    def test_an_interpreter_ends_cleanly_without_shutdown(self):
        started = time.monotonic()
        result = run_python(
            "import asyncio\n"
            "from kun import AsyncLLM, SamplingParams\n"
            "from scripts import SLOW, script_model\n"
            "llm = AsyncLLM(script_model(SLOW), kv_cache_memory_bytes=1 << 22)\n"
            "async def main():\n"
            "    async for output in llm.generate('forever?', SamplingParams(max_tokens=1700)):\n"
            "        break\n"
            "asyncio.run(main())\n"
            "print('end')\n")
        self.assertEqual((result.returncode, result.stdout), (0, "end\n"), result.stderr)
        self.assertLess(time.monotonic() - started, 15)


if __name__ == "__main__":
    unittest.main()
