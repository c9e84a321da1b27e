"""LLM with the default model: the same tokens as the command line gives, alone and in company."""

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import unittest

from kun import LLM, AsyncLLM, PoolingParams, SamplingParams

KUN = os.environ["KUN"]
MODEL = os.environ["KUN_MODEL"]
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
OPTIONS = {"kv_cache_memory_bytes": 256 << 20, "max_model_len": 1024}
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):",
    "Water boils at",
]


def complete(prompt, tokens):
    """What `kun complete` says."""
    command = [KUN, "complete", MODEL, "--prompt", prompt, "--max-tokens", str(tokens),
               "--temperature", "0", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(result.stdout)


class RealModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(MODEL, **OPTIONS)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def generate(self, prompts, **fields):
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 20, **fields})
        return self.llm.generate(prompts, params, use_tqdm=False)

    def test_greedy_text_is_that_of_kun_complete(self):
        outputs = self.generate(PROMPTS[:2])
        for prompt, output in zip(PROMPTS, outputs):
            answer = complete(prompt, 20)
            self.assertEqual(output.outputs[0].text, answer["text"])
            self.assertEqual(output.outputs[0].finish_reason, answer["finish_reason"])
            self.assertEqual(len(output.prompt_token_ids), answer["prompt_tokens"])
            self.assertEqual(len(output.outputs[0].token_ids), answer["completion_tokens"])

    def test_a_batch_gives_each_prompt_what_it_gets_alone(self):
        together = self.generate(PROMPTS)
        for prompt, output in zip(PROMPTS, together):
            (alone,) = self.generate(prompt)
            self.assertEqual(output.outputs[0].token_ids, alone.outputs[0].token_ids)

    def test_choices_differ_and_a_seed_repeats_them(self):
        fields = {"temperature": 1.0, "top_p": 0.95, "n": 3, "seed": 1234}
        (first,) = self.generate(PROMPTS[1], **fields)
        (second,) = self.generate(PROMPTS[1], **fields)
        texts = [completion.text for completion in first.outputs]
        self.assertEqual(texts, [completion.text for completion in second.outputs])
        self.assertEqual(len(set(texts)), 3)
        (other,) = self.generate(PROMPTS[1], **{**fields, "seed": 1235})
        self.assertNotEqual(texts, [completion.text for completion in other.outputs])

    def test_logprobs_of_greedy_tokens_are_the_largest(self):
        (output,) = self.generate(PROMPTS[0], logprobs=5)
        (completion,) = output.outputs
        self.assertEqual(len(completion.logprobs), len(completion.token_ids))
        for token, row in zip(completion.token_ids, completion.logprobs):
            self.assertEqual(row[token].rank, 1)
            values = [entry.logprob for entry in row.values()]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertEqual(len(row), 5)
            self.assertEqual(row[token].decoded_token, self.llm.get_tokenizer().decode(token))
        self.assertLess(completion.cumulative_logprob, 0.0)

    def test_a_stop_string_cuts_the_same_text(self):
        (whole,) = self.generate(PROMPTS[0])
        text = whole.outputs[0].text
        word = text.split()[2]
        (cut,) = self.generate(PROMPTS[0], stop=[word])
        self.assertEqual(cut.outputs[0].text, text[: text.index(word)])
        self.assertEqual(cut.outputs[0].stop_reason, word)

    def test_chat_is_the_template_and_then_generate(self):
        conversation = [{"role": "user", "content": "Name a colour."}]
        (chat,) = self.llm.chat(conversation, SamplingParams(temperature=0, max_tokens=20),
                                use_tqdm=False)
        ids = self.llm.get_tokenizer().apply_chat_template(
            conversation, tokenize=True, add_generation_prompt=True)
        self.assertEqual(chat.prompt_token_ids, ids)
        self.assertIn("Name a colour.", chat.prompt)
        (plain,) = self.generate([ids])
        self.assertEqual(chat.outputs[0].token_ids, plain.outputs[0].token_ids)

    def test_async_streams_the_same_tokens(self):
        (expected,) = self.generate(PROMPTS[0])

        async def stream():
            async with AsyncLLM(MODEL, **OPTIONS) as llm:
                params = SamplingParams(temperature=0, max_tokens=20)
                return [output async for output in llm.generate(PROMPTS[0], params)]

        outputs = asyncio.run(stream())
        self.assertEqual(outputs[-1].outputs[0].token_ids, expected.outputs[0].token_ids)
        self.assertGreater(len(outputs), 1)

    def test_embeddings_are_the_same_alone_and_in_company(self):
        texts = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Stocks fell sharply."]
        mean = PoolingParams(pooling="mean")
        together = self.llm.embed(texts, pooling_params=mean, use_tqdm=False)
        for text, output in zip(texts, together):
            (alone,) = self.llm.embed(text, pooling_params=mean, use_tqdm=False)
            self.assertEqual(alone.outputs.embedding, output.outputs.embedding)
            self.assertAlmostEqual(sum(x * x for x in alone.outputs.embedding), 1.0, places=5)
        near, far = self.llm.score(texts[0], texts[1:], pooling_params=mean, use_tqdm=False)
        self.assertGreater(near.outputs.score, far.outputs.score)

    def test_the_examples_run(self):
        for name, count in (("offline_inference.py", 4), ("structured_outputs.py", 3)):
            result = subprocess.run([sys.executable, str(EXAMPLES / name), MODEL],
                                    capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.count("Prompt:    "), count, result.stdout)



if __name__ == "__main__":
    unittest.main()
