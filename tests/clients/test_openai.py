"""The official OpenAI Python client against a running `kun serve` (see run.sh)."""

import concurrent.futures
import json
import os
import socket
import struct
import threading
import time
import unittest
import urllib.request

import openai
from prometheus_client.parser import text_string_to_metric_families

BASE = os.environ["KUN_URL"]
PID = int(os.environ["KUN_PID"])
client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id
HELLO = [{"role": "user", "content": "Say hello."}]


def chat(**options):
    settings = dict(model=MODEL, messages=HELLO, max_tokens=16, temperature=0)
    return client.chat.completions.create(**{**settings, **options})


def complete(**options):
    settings = dict(model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0)
    return client.completions.create(**{**settings, **options})


def metric_samples():
    with urllib.request.urlopen(BASE + "/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
        return [sample for family in families for sample in family.samples]


def metric(name):
    """The sum of a metric's samples."""
    return sum(sample.value for sample in metric_samples() if sample.name == name)


def resident_kib():
    with open(f"/proc/{PID}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    raise AssertionError("no VmRSS")


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.05)


class Chat(unittest.TestCase):
    def test_answers_with_usage(self):
        answer = chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens,
                         answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertLessEqual(answer.usage.completion_tokens, 16)

    def test_stream_adds_up_to_the_answer(self):
        whole = chat().choices[0].message.content
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertFalse(chunks[-1].choices)
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)
        self.assertIn(chunks[-2].choices[0].finish_reason, ("stop", "length"))

    def test_second_time_finds_the_prompt_in_the_cache(self):
        prompt = [{"role": "user", "content": "Count the words of this line, please. " * 12}]
        chat(messages=prompt)
        again = chat(messages=prompt)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_three_choices_differ_and_come_back_with_the_seed(self):
        first = chat(n=3, temperature=1.2, seed=7)
        again = chat(n=3, temperature=1.2, seed=7)
        texts = [choice.message.content for choice in first.choices]
        self.assertEqual([choice.index for choice in first.choices], [0, 1, 2])
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(texts, [choice.message.content for choice in again.choices])

    def test_seed_holds_under_load(self):
        alone = chat(temperature=0.9, seed=11, max_tokens=24).choices[0].message.content
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            noise = [pool.submit(chat, temperature=1.0, seed=i, max_tokens=24) for i in range(8)]
            loaded = pool.submit(chat, temperature=0.9, seed=11, max_tokens=24).result()
            for future in noise:
                future.result()
        self.assertEqual(alone, loaded.choices[0].message.content)

    def test_logprobs(self):
        answer = chat(logprobs=True, top_logprobs=3, max_tokens=4)
        for entry in answer.choices[0].logprobs.content:
            self.assertLessEqual(entry.logprob, 0.0)
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.top_logprobs[0].token, entry.token)  # greedy
            self.assertEqual(bytes(entry.bytes).decode("utf-8", "replace"), entry.token)

    def test_logit_bias_forbids_a_token(self):
        plain = chat(logprobs=True, max_tokens=1)
        first = plain.choices[0].logprobs.content[0].token
        ids = json.load(urllib.request.urlopen(urllib.request.Request(
            BASE + "/tokenize", json.dumps({"prompt": first, "add_special_tokens": False}).encode(),
            {"Content-Type": "application/json"})))["tokens"]
        self.assertEqual(len(ids), 1)
        biased = chat(logprobs=True, max_tokens=1, logit_bias={str(ids[0]): -100})
        self.assertNotEqual(biased.choices[0].logprobs.content[0].token, first)

    def test_32_streams_at_once(self):
        def one(i):
            chunks = chat(stream=True, max_tokens=24, seed=i, temperature=0.8,
                          messages=[{"role": "user", "content": f"Tell me about number {i}."}])
            return [c.choices[0].finish_reason for c in chunks if c.choices][-1]

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            reasons = list(pool.map(one, range(32)))
        self.assertTrue(all(reason in ("stop", "length") for reason in reasons))


class Completions(unittest.TestCase):
    def test_metrics_tell_the_phases_of_a_request(self):
        names = ["queue_time", "prefill_time", "decode_time", "inference_time"]
        names = [f"vllm:request_{name}_seconds" for name in names]
        names.append("vllm:e2e_request_latency_seconds")
        before = [(metric(name + "_count"), metric(name + "_sum")) for name in names]
        complete(max_tokens=24, extra_body={"ignore_eos": True})
        after = [(metric(name + "_count"), metric(name + "_sum")) for name in names]
        self.assertEqual([b[0] - a[0] for a, b in zip(before, after)], [1] * 5)
        queue, prefill, decode, inference, total = (b[1] - a[1] for a, b in zip(before, after))
        self.assertAlmostEqual(prefill + decode, inference, places=5)
        self.assertGreater(decode, prefill)
        self.assertLess(queue + inference, total)
        series = [(s.name, tuple(sorted(s.labels.items()))) for s in metric_samples()]
        self.assertEqual(len(series), len(set(series)))

    def test_knows_a_capital(self):
        self.assertIn("Paris", complete().choices[0].text)

    def test_stops_at_a_string_that_spans_tokens(self):
        whole = complete(max_tokens=24).choices[0].text
        stop = whole[4:9]
        cut = complete(max_tokens=24, stop=[stop])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        self.assertEqual(cut.choices[0].text, whole[:whole.index(stop)])

    def test_batch_of_prompts_and_token_ids(self):
        batch = complete(prompt=["One, two,", "Red, green,"])
        self.assertEqual([choice.index for choice in batch.choices], [0, 1])
        ids = complete(prompt=[1, 2, 3, 4])
        self.assertEqual(ids.usage.prompt_tokens, 4)

    def test_echo_and_logprobs(self):
        answer = complete(echo=True)
        self.assertTrue(answer.choices[0].text.startswith("The capital of France is"))
        scored = complete(logprobs=2)
        self.assertEqual(len(scored.choices[0].logprobs.tokens), scored.usage.completion_tokens)

    def test_min_tokens_and_ignore_eos(self):
        answer = complete(extra_body={"ignore_eos": True}, max_tokens=40)
        self.assertEqual(answer.usage.completion_tokens, 40)
        self.assertEqual(answer.choices[0].finish_reason, "length")


class Errors(unittest.TestCase):
    def refused(self, **options):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(**options)
        return caught.exception

    def test_unknown_model_is_404(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            chat(model="nobody")
        self.assertEqual(caught.exception.param, "model")

    def test_bad_parameters_are_400_and_named(self):
        for name, value in [("temperature", -1), ("top_p", 0), ("n", 0), ("max_tokens", 0),
                            ("top_logprobs", 21), ("presence_penalty", 5)]:
            with self.subTest(name):
                error = self.refused(**{name: value, "logprobs": True})
                self.assertEqual(error.param, name)

    def test_prompt_over_the_context_is_400(self):
        error = self.refused(messages=[{"role": "user", "content": "word " * 60000}])
        self.assertIn("context", str(error))

    def test_ten_thousand_stop_strings_are_400(self):
        self.refused(stop=[str(i) for i in range(10000)])

    def test_deep_json_and_broken_utf8_are_400(self):
        for body in (b"[" * 100000, b'{"model":"\xff\xfe"}', b"{", b'{"temperature":NaN}'):
            request = urllib.request.Request(BASE + "/v1/chat/completions", body,
                                             {"Content-Type": "application/json"})
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            self.assertEqual(caught.exception.code, 400)


class Survival(unittest.TestCase):
    def test_disconnects_cancel(self):
        def hang_up(i):
            stream = chat(stream=True, max_tokens=2000, seed=i, temperature=1,
                          extra_body={"ignore_eos": True})
            for seen, _ in enumerate(stream):
                if seen == 3:
                    break
            stream.close()

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            list(pool.map(hang_up, range(64)))
        wait_until(lambda: metric("vllm:num_requests_running") == 0)
        self.assertEqual(metric("vllm:kv_cache_usage_perc"), 0.0)

    def test_500_at_once_are_answered_or_refused(self):
        body = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 2}).encode()
        counts, lock = {}, threading.Lock()

        def fire(_):
            request = urllib.request.Request(BASE + "/v1/completions", body,
                                             {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    code = answer.status
            except urllib.error.HTTPError as error:
                code = error.code
                if code == 429:
                    self.assertTrue(error.headers["Retry-After"])
            with lock:
                counts[code] = counts.get(code, 0) + 1

        with concurrent.futures.ThreadPoolExecutor(500) as pool:
            list(pool.map(fire, range(500)))
        self.assertEqual(sum(counts.values()), 500)
        self.assertTrue(set(counts) <= {200, 429}, counts)

    def test_slow_reader_does_not_hold_others(self):
        host, port = BASE.removeprefix("http://").split(":")
        body = json.dumps({"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 4000,
                           "ignore_eos": True}).encode()
        slow = socket.create_connection((host, int(port)))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                     b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        try:
            self.assertTrue(chat(max_tokens=8).choices[0].message.content)
        finally:
            slow.close()
        wait_until(lambda: metric("vllm:num_requests_running") == 0)

    def test_memory_after_many_requests_is_what_it_was(self):
        def small(i):
            complete(prompt=f"{i} is", max_tokens=1)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(small, range(200)))
            before = resident_kib()
            list(pool.map(small, range(200, 2000)))
        # Allocators keep some slack; a leak of 4 KiB a request would be 7 MiB.
        self.assertLess(resident_kib() - before, 6 * 1024)

    def test_prompts_do_not_stall_running_streams(self):
        pairs = []
        for _ in range(5):  # other programs disturb, too: one undisturbed pair is enough
            pairs.append((self.gaps(0), self.gaps(4)))
            if pairs[-1][1] < 3 * pairs[-1][0]:
                return
        self.fail(f"p99 gaps without and with prompts, in seconds: {pairs}")

    def gaps(self, prompt_count):
        """The p99 gap between the tokens of one stream while long prompts arrive."""
        stream = chat(stream=True, max_tokens=200, extra_body={"ignore_eos": True})
        times = []
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for seen, _ in enumerate(stream):
                times.append(time.monotonic())
                if seen == 10:
                    for i in range(prompt_count):
                        pool.submit(complete, prompt=[5 + (i * 31 + j * 7) % 900
                                                      for j in range(2000)], max_tokens=1)
        between = sorted(b - a for a, b in zip(times[5:], times[6:]))
        return between[int(0.99 * (len(between) - 1))]


class Embeddings(unittest.TestCase):
    TEXTS = ["A cat sleeps on the sofa.", "A kitten is sleeping on the couch.",
             "Share prices fell sharply on Monday."]

    def embed(self, **options):
        answer = client.embeddings.create(model=MODEL, input=self.TEXTS, **options)
        self.assertEqual([one.index for one in answer.data], [0, 1, 2])
        return [one.embedding for one in answer.data], answer.usage

    def test_are_the_same_in_both_encodings(self):
        packed, usage = self.embed()  # the client asks for base64 and decodes it
        plain, _ = self.embed(encoding_format="float")
        for one, other in zip(packed, plain):
            as_floats = struct.unpack(f"{len(other)}f", struct.pack(f"{len(other)}f", *other))
            self.assertTrue(list(as_floats) == one)
        self.assertAlmostEqual(sum(x * x for x in plain[0]), 1, 4)
        self.assertGreater(usage.prompt_tokens, 15)

    def test_of_like_texts_are_alike(self):
        (cat, kitten, shares), _ = self.embed(extra_body={"pooling": "mean"})

        def cosine(a, b):
            return sum(x * y for x, y in zip(a, b))

        self.assertGreater(cosine(cat, kitten), cosine(cat, shares))

    def test_fewer_dimensions_are_the_first_of_them(self):
        whole, _ = self.embed()
        part, _ = self.embed(dimensions=8)
        self.assertEqual(len(part[0]), 8)
        length = sum(x * x for x in whole[0][:8]) ** 0.5
        for a, b in zip(part[0], whole[0]):
            self.assertAlmostEqual(a, b / length, 5)


class BeamSearch(unittest.TestCase):
    def test_finds_a_likelier_text_than_greedy_sampling(self):
        settings = dict(max_tokens=12, logprobs=0)
        greedy = complete(**settings).choices[0]
        beams = complete(n=4, extra_body={"use_beam_search": True, "length_penalty": 0.0,
                                          "early_stopping": "never"}, **settings).choices
        sums = [sum(beam.logprobs.token_logprobs) for beam in beams]
        self.assertEqual(len({beam.text for beam in beams}), 4)
        self.assertEqual(sums, sorted(sums, reverse=True))
        self.assertGreaterEqual(sums[0], sum(greedy.logprobs.token_logprobs) - 1e-4)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    bad = len(result.failures) + len(result.errors)
    print(f"python: {result.testsRun - bad} passed, {bad} failed")
    raise SystemExit(bad > 0)
