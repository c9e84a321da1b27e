"""LLM with a scripted model: shapes, ends, errors, interruption and life."""

import ast
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest
import warnings
from contextlib import redirect_stderr
from unittest import mock

import kun
from kun import (
    LLM,
    BeamSearchParams,
    PoolingParams,
    SamplingParams,
    StructuredOutputsParams,
    _kun,
    _options,
    sampling_params,
)
from scripts import FAST, GREETING, SLOW, script_model

GREEDY = SamplingParams(temperature=0, max_tokens=200)
OPTIONS = {"kv_cache_memory_bytes": 1 << 22}


def only(outputs):
    """The one completion of the one result."""
    (output,) = outputs
    (completion,) = output.outputs
    return completion


class ScriptedLlm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(script_model(FAST), **OPTIONS)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def generate(self, prompts, params=GREEDY, **kwargs):
        return self.llm.generate(prompts, params, use_tqdm=False, **kwargs)


class ResultsTest(ScriptedLlm):
    def test_a_result_has_the_shape_of_vllm(self):
        (output,) = self.generate("hi?")
        self.assertEqual(output.prompt, "hi?")
        self.assertEqual(output.prompt_token_ids, list(b"hi?"))
        self.assertTrue(output.finished)
        completion = output.outputs[0]
        self.assertEqual(completion.index, 0)
        self.assertEqual(completion.text, GREETING)
        self.assertEqual(completion.token_ids, [*GREETING.encode(), 256])
        self.assertEqual(completion.finish_reason, "stop")
        self.assertIsNone(completion.stop_reason)
        self.assertIsNone(completion.logprobs)
        self.assertIsNone(completion.cumulative_logprob)
        self.assertTrue(completion.finished())
        self.assertGreaterEqual(output.metrics.finished_time, output.metrics.arrival_time)

    def test_results_come_in_the_order_of_prompts_though_later_ones_end_first(self):
        prompts = ["forever?"] + [f"{i} hi?" for i in range(600)]  # more than run at once
        outputs = self.generate(prompts)
        self.assertEqual([output.prompt for output in outputs], prompts)
        self.assertEqual(len({output.request_id for output in outputs}), len(prompts))
        self.assertTrue(outputs[0].outputs[0].text.startswith("xyxy"))
        self.assertEqual({o.outputs[0].text for o in outputs[1:]}, {GREETING})

    def test_prompts_come_in_every_form(self):
        ids = list(b"hi?")
        for prompt in ("hi?", ["hi?"], ids, [ids], {"prompt": "hi?"}, {"prompt_token_ids": ids},
                       [{"prompt_token_ids": ids, "prompt": "hi?", "cache_salt": "s"}]):
            self.assertEqual(self.generate(prompt)[0].prompt_token_ids, ids, prompt)
        output = self.llm.generate(prompt_token_ids=[ids], sampling_params=GREEDY, use_tqdm=False)
        self.assertEqual(only(output).text, GREETING)
        self.assertEqual(self.generate([]), [])

    def test_each_prompt_may_have_its_own_parameters(self):
        params = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 2, 3)]
        outputs = self.generate(["a?", "b?", "c?"], params)
        self.assertEqual([len(o.outputs[0].token_ids) for o in outputs], [1, 2, 3])
        with self.assertRaisesRegex(ValueError, "2 prompts and 3 sampling_params"):
            self.generate(["a?", "b?"], params)

    def test_max_tokens_ends_with_length_and_none_goes_on_to_the_context(self):
        completion = only(self.generate("hi?", SamplingParams(temperature=0, max_tokens=5)))
        self.assertEqual((completion.text, completion.finish_reason), ("Hello", "length"))
        completion = only(self.generate("forever?", SamplingParams(temperature=0, max_tokens=None)))
        self.assertEqual(completion.finish_reason, "length")
        self.assertEqual(len(completion.token_ids), 512 - len("forever?"))

    def test_a_stop_string_ends_the_text_and_is_named(self):
        params = SamplingParams(temperature=0, max_tokens=99, stop=["stranger", "never"])
        completion = only(self.generate("hi?", params))
        self.assertEqual(completion.text, "Hello there, ")
        self.assertEqual(completion.stop_reason, "stranger")
        self.assertEqual(completion.finish_reason, "stop")
        self.assertEqual(bytes(completion.token_ids), b"Hello there, stranger")
        params.include_stop_str_in_output = True
        self.assertEqual(only(self.generate("hi?", params)).text, "Hello there, stranger")

    def test_a_stop_string_does_not_count_before_min_tokens(self):
        params = SamplingParams(temperature=0, max_tokens=99, stop="e", min_tokens=5)
        self.assertEqual(only(self.generate("hi?", params)).text, "Hello th")

    def test_a_stop_token_is_named_and_not_in_the_text(self):
        params = SamplingParams(temperature=0, max_tokens=99, stop_token_ids=[ord(",")])
        completion = only(self.generate("hi?", params))
        self.assertEqual(completion.text, "Hello there")
        self.assertEqual(completion.stop_reason, ord(","))
        self.assertEqual(completion.token_ids[-1], ord(","))
        params.include_stop_str_in_output = True
        self.assertEqual(only(self.generate("hi?", params)).text, "Hello there,")

    def test_ignore_eos_goes_on_behind_the_end_token(self):
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        completion = only(self.generate("hi?", params))
        self.assertEqual(completion.finish_reason, "length")
        self.assertEqual(completion.token_ids.count(256), 2)
        self.assertEqual(completion.text, (GREETING * 3)[: 60 - 2])

    def test_characters_come_whole(self):
        self.assertEqual(only(self.generate("snow?")).text, "\u2603!")
        cut = SamplingParams(temperature=0, max_tokens=2)
        self.assertEqual(only(self.generate("snow?", cut)).text, "\ufffd")

    def test_detokenize_false_gives_ids_alone(self):
        params = SamplingParams(temperature=0, max_tokens=5, detokenize=False)
        completion = only(self.generate("hi?", params))
        self.assertEqual((completion.text, completion.token_ids), ("", list(b"Hello")))

    def test_n_gives_as_many_choices(self):
        params = SamplingParams(temperature=1.0, n=4, seed=7, max_tokens=99)
        (output,) = self.generate("hi?", params)
        self.assertEqual([c.index for c in output.outputs], [0, 1, 2, 3])
        self.assertEqual({c.text for c in output.outputs}, {GREETING})

    def test_logprobs_have_the_token_first_and_add_up(self):
        params = SamplingParams(temperature=0, max_tokens=5, logprobs=3)
        completion = only(self.generate("hi?", params))
        self.assertEqual(len(completion.logprobs), 5)
        for token, row in zip(completion.token_ids, completion.logprobs):
            self.assertEqual(len(row), 3)
            self.assertEqual(next(iter(row)), token)
            self.assertEqual(row[token].rank, 1)
            self.assertEqual(row[token].decoded_token, chr(token))
            self.assertLessEqual(row[token].logprob, 0.0)
        total = sum(row[t].logprob for t, row in zip(completion.token_ids, completion.logprobs))
        self.assertAlmostEqual(completion.cumulative_logprob, total, places=5)
        params = SamplingParams(temperature=0, max_tokens=2, logprobs=0)
        self.assertEqual([len(row) for row in only(self.generate("hi?", params)).logprobs], [1, 1])

    def test_logit_bias_reaches_the_sampler(self):
        params = SamplingParams(temperature=0, max_tokens=1, logit_bias={ord("H"): -100.0})
        self.assertNotEqual(only(self.generate("hi?", params)).text, "H")
        params = SamplingParams(temperature=0, max_tokens=1, logit_bias={257: 1.0})
        with self.assertRaisesRegex(ValueError, "257, which is no token id"):
            self.generate("hi?", params)

    def test_truncate_prompt_tokens_keeps_the_end(self):
        params = SamplingParams(temperature=0, max_tokens=3, truncate_prompt_tokens=4)
        (output,) = self.generate("0123456789", params)
        self.assertEqual(output.prompt_token_ids, list(b"6789"))
        params.truncate_prompt_tokens = -1
        (output,) = self.generate("0" * 900, params)
        self.assertEqual(len(output.prompt_token_ids), 512 - 3)

    def test_cached_tokens_are_told_and_can_be_forgone(self):
        prompt = "A long beginning that fills more than one block of the cache, hi?"
        self.generate(prompt)
        self.assertGreater(self.generate(prompt)[0].num_cached_tokens, 0)
        params = GREEDY.clone()
        params.skip_reading_prefix_cache = True
        self.assertEqual(self.generate(prompt, params)[0].num_cached_tokens, 0)

    def test_chat_renders_the_template_and_joins_parts(self):
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two?"}]
        conversation = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]
        (output,) = self.llm.chat(conversation, GREEDY, use_tqdm=False)
        self.assertEqual(output.prompt, "system: be\nuser: one\ntwo?\nassistant: ")
        self.assertEqual(output.outputs[0].text, GREETING)
        outputs = self.llm.chat([conversation, conversation[1:]], GREEDY, use_tqdm=False)
        self.assertEqual(outputs[1].prompt, "user: one\ntwo?\nassistant: ")

    def test_chat_takes_another_template_its_variables_and_tools(self):
        (output,) = self.llm.chat(
            [{"role": "user", "content": "hi?"}], GREEDY, use_tqdm=False,
            chat_template="{{ mood }} {{ tools[0].function.name }} {{ messages[0].content }}",
            tools=[{"type": "function", "function": {"name": "look"}}],
            chat_template_kwargs={"mood": "calm"},
        )
        self.assertEqual(output.prompt, "calm look hi?")

    def test_chat_can_continue_the_final_message(self):
        conversation = [{"role": "user", "content": "x"},
                        {"role": "assistant", "content": "Well, "}]
        (output,) = self.llm.chat(conversation, GREEDY, use_tqdm=False,
                                  add_generation_prompt=False, continue_final_message=True)
        self.assertEqual(output.prompt, "user: x\nassistant: Well, ")
        with self.assertRaisesRegex(ValueError, "add_generation_prompt=False"):
            self.llm.chat(conversation, GREEDY, continue_final_message=True)

    def test_the_tokenizer_is_there(self):
        tokenizer = self.llm.get_tokenizer()
        self.assertEqual(tokenizer.encode("hi"), list(b"hi"))
        self.assertEqual(tokenizer.decode(list(b"hi")), "hi")
        self.assertEqual(tokenizer.decode(104), "h")
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}])
        self.assertEqual(text, "user: a\n")
        self.assertEqual(tokenizer.vocab_size, 257)

    def test_seeds_are_drawn_from_the_llm_so_that_a_program_repeats_itself(self):
        params = SamplingParams(temperature=5.0, max_tokens=30, logit_bias={65: 100.0, 66: 100.0})

        def texts(seed):
            with LLM(script_model(FAST), seed=seed, **OPTIONS) as llm:
                return [llm.generate("hi?", params, use_tqdm=False)[0].outputs[0].token_ids
                        for _ in range(3)]

        first = texts(1)
        self.assertEqual(first, texts(1))
        self.assertNotEqual(first, texts(2))
        self.assertNotEqual(first[0], first[1])


class ErrorsTest(ScriptedLlm):
    def test_a_failed_step_raises_its_sentence_and_the_engine_goes_on(self):
        with self.assertRaisesRegex(RuntimeError, "the script says no") as caught:
            self.generate(["hi?", "error?"])
        self.assertIsInstance(caught.exception, kun.KunError)
        with self.assertRaises(kun.InternalError):
            self.generate("nan?")
        self.assertEqual(only(self.generate("hi?")).text, GREETING)

    def test_what_does_not_fit_is_a_value_error_before_anything_runs(self):
        steps = self.llm.stats()["step_count"]
        for prompts, message in (
            (["hi?", "x" * 512], r"prompts\[1\] has 512 tokens"),
            ("", "the prompt is empty"),
            ([[1, 999]], "999, which is none of 257"),
            ([{"text": "x"}], "neither 'prompt' nor 'prompt_token_ids'"),
            (5, "got int"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.generate(prompts)
        with self.assertRaisesRegex(ValueError, "n is 1000"):
            self.generate("hi?", SamplingParams(n=1000))
        with self.assertRaisesRegex(ValueError, "logprobs is 21"):
            self.generate("hi?", SamplingParams(logprobs=21))
        self.assertEqual(self.llm.stats()["step_count"], steps)

    def test_messages_that_are_wrong_are_named(self):
        for messages, message in (
            ([], "must be a list of messages"),
            ([{"role": "king", "content": "x"}], r"messages\[0\]\['role'\]"),
            ([{"role": "user"}], r"messages\[0\] has no content"),
            ([[{"role": "user", "content": 5}]], r"messages\[0\]\[0\]\['content'\]"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.llm.chat(messages, GREEDY)
        with self.assertRaisesRegex(ValueError, "template"):
            self.llm.chat([{"role": "user", "content": "x"}],
                          chat_template="{{ raise_exception('no') }}")

    def test_what_the_engine_cannot_do_is_refused_by_name(self):
        for call in (self.llm.classify, self.llm.reward):
            with self.assertRaisesRegex(NotImplementedError, "not supported"):
                call("x")
        with self.assertRaisesRegex(NotImplementedError, "lora"):
            self.generate("hi?", lora_request=object())
        with self.assertRaisesRegex(NotImplementedError, "multi_modal_data"):
            self.generate({"prompt": "x", "multi_modal_data": {"image": 1}})

    def test_a_model_that_is_not_there_is_a_file_not_found_error(self):
        with self.assertRaises(FileNotFoundError) as caught:
            LLM("no/such-model")
        self.assertIn("no/such-model", str(caught.exception))
        with self.assertRaises(kun.KunError):
            LLM("script:/no/such/file")

    def test_every_code_has_its_class(self):
        for code, builtin in (("invalid_argument", ValueError), ("not_found", FileNotFoundError),
                              ("resource_exhausted", RuntimeError), ("unavailable", RuntimeError),
                              ("unimplemented", NotImplementedError), ("data_loss", ValueError),
                              ("cancelled", RuntimeError), ("internal", RuntimeError)):
            error = kun.errors.from_status(code, "why")
            self.assertIsInstance(error, builtin)
            self.assertEqual((error.code, str(error)), (code, "why"))


class DemandsTest(ScriptedLlm):
    """What SamplingParams may demand of the output and want to know of the prompt."""

    def test_outputs_are_what_structured_outputs_demand(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}},
                  "required": ["n"], "additionalProperties": False}

        class Pydantic:
            @staticmethod
            def model_json_schema():
                return schema

        for demand, form in (
            ({"regex": "[a-c]{3}"}, "[a-c]{3}"),
            ({"choice": ["yes", 'no "way"']}, 'yes|no "way"'),
            ({"grammar": 'root ::= "x" [0-9]'}, "x[0-9]"),
            ({"grammar": 'start: "x" /[0-9]/'}, "x[0-9]"),
            ({"json": schema, "disable_any_whitespace": True}, r'\{"n":-?[0-9]+\}'),
            ({"json": json.dumps(schema), "whitespace_pattern": "_?"}, r'\{_?"n"_?:_?-?\d+_?\}'),
            ({"json": Pydantic, "disable_any_whitespace": True}, r'\{"n":-?[0-9]+\}'),
            ({"structural_tag": {"format": {"type": "sequence", "elements": [
                {"type": "const_string", "value": "x"}, {"type": "regex", "pattern": "[0-9]"}]}}},
             "x[0-9]"),
            ({"structural_tag": json.dumps({"format": {"type": "tag", "begin": "x<", "end": ">",
              "content": {"type": "json_schema", "json_schema": {"enum": [4, 5]}}}})}, "x<[45]>"),
        ):
            params = SamplingParams(temperature=0.8, seed=3, max_tokens=400, n=2,
                                    structured_outputs=StructuredOutputsParams(**demand))
            (output,) = self.generate("hi?", params)
            for completion in output.outputs:
                if completion.finish_reason == "stop":
                    self.assertRegex(completion.text, f"^(?:{form})$", demand)
                else:  # a number without end, as this model has no end token where one may stand
                    self.assertTrue(completion.text.startswith(("{", "x")), demand)
        older = SamplingParams(guided_decoding={"regex": "[a-c]{3}"}, temperature=0)
        self.assertRegex(only(self.generate("hi?", older)).text, "^[a-c]{3}$")

    def test_thoughts_come_before_what_is_demanded(self):
        params = SamplingParams(temperature=0, max_tokens=9, structured_outputs={"regex": "a+"})
        thinking = only(self.generate("hi?<think>\n", params)).text
        self.assertEqual(thinking, GREETING[:9])
        self.assertEqual(only(self.generate("hi?", params)).text, "a" * 9)

    def test_demands_that_cannot_be_are_value_errors_before_anything_runs(self):
        steps = self.llm.stats()["step_count"]
        for demand in ({"regex": "("}, {"json": {"type": "something"}}, {"json": "{"},
                       {"json": {"not": {"type": "null"}}}, {"grammar": "root ::= ("},
                       {"choice": []}, {"choice": [""]}):
            params = SamplingParams(structured_outputs=demand)
            with self.assertRaises(ValueError, msg=demand):
                self.generate(["hi?", "hi?"], [GREEDY, params])
        self.assertEqual(self.llm.stats()["step_count"], steps)

    def test_only_allowed_tokens_are_sampled(self):
        allowed = list(b"xyz")
        params = SamplingParams(max_tokens=12, allowed_token_ids=allowed, seed=1)
        self.assertLessEqual(set(only(self.generate("hi?", params)).token_ids), set(allowed))
        with self.assertRaisesRegex(ValueError, "allowed_token_ids has 257"):
            self.generate("hi?", SamplingParams(allowed_token_ids=[3, 257]))

    def test_bad_words_are_not_said(self):
        free = only(self.generate("hi?")).text
        self.assertIn("there", free)
        params = SamplingParams(temperature=0, max_tokens=30, bad_words=["there", "lo"])
        text = only(self.generate("hi?", params)).text
        self.assertNotIn("there", text)
        self.assertNotIn("lo", text)

    def test_prompts_have_logprobs_on_demand(self):
        params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=2)
        (output,) = self.generate("hi?", params)
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        self.assertIsNone(output.prompt_logprobs[0])
        for token, row in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
            self.assertIn(token, row)
            self.assertIn(len(row), (2, 3))
            self.assertLessEqual(row[token].logprob, 0.0)
            self.assertEqual(sorted(p.rank for p in row.values() if p.rank), [1, 2])
        self.assertIsNone(self.generate("hi?")[0].prompt_logprobs)
        with self.assertRaisesRegex(ValueError, "prompt_logprobs is 21"):
            self.generate("hi?", SamplingParams(prompt_logprobs=21))

    def test_speculation_changes_no_text(self):
        config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,
                  "adaptive": False}
        with LLM(script_model(FAST), speculative_config=config, **OPTIONS) as llm:
            params = SamplingParams(temperature=0, max_tokens=100)
            text = only(llm.generate("forever?", params, use_tqdm=False)).text
            self.assertEqual(text, "xy" * 50)
            self.assertGreater(llm.stats()["accepted_token_count"], 50)
        with self.assertRaisesRegex(ValueError, "banana"):
            LLM(script_model(FAST), speculative_config={"banana": 1}, **OPTIONS)


class BeamSearchTest(ScriptedLlm):
    def test_the_best_beam_is_the_greedy_text_of_a_peaked_model(self):
        params = BeamSearchParams(beam_width=3, max_tokens=40)
        for prompt in ("hi?", list(b"hi?")):
            (output,) = self.llm.beam_search(prompt, params)
            best = output.sequences[0]
            self.assertEqual(len(output.sequences), 3)
            self.assertEqual(best.text, "hi?" + GREETING)
            self.assertEqual(best.tokens, list(b"hi?" + GREETING.encode() + b"") + [256])
            self.assertEqual(best.finish_reason, "stop")
            self.assertGreater(best.cum_logprob, output.sequences[1].cum_logprob)
        self.assertEqual(len(self.llm.beam_search(["a", "b"], params)), 2)
        with self.assertRaises(ValueError):
            BeamSearchParams(beam_width=0, max_tokens=1)
        with self.assertRaises(NotImplementedError):
            BeamSearchParams(beam_width=2, max_tokens=1, temperature=0.7)


class PoolingTest(ScriptedLlm):
    """A scripted model's hidden state is the token it says next, and a zero."""

    def test_prompts_have_hidden_states_on_demand(self):
        raw = PoolingParams(normalize=False)
        outputs = self.llm.encode(["hi?", "forever?"], raw, use_tqdm=False)
        self.assertEqual([o.outputs.data for o in outputs], [[ord("H"), 0.0], [ord("x"), 0.0]])
        self.assertEqual(outputs[0].prompt_token_ids, list(b"hi?"))
        self.assertTrue(outputs[0].finished)
        self.assertEqual(len({o.request_id for o in outputs}), 2)
        ids = self.llm.encode(list(b"hi?"), raw, use_tqdm=False)
        self.assertEqual(ids[0].outputs.data, [ord("H"), 0.0])

    def test_embeddings_have_length_one_and_the_dimensions_asked_for(self):
        (output,) = self.llm.embed("hi?", use_tqdm=False)
        self.assertEqual(output.outputs.embedding, [1.0, 0.0])
        self.assertEqual(output.outputs.hidden_size, 2)
        short = PoolingParams(dimensions=1, pooling="mean")
        (output,) = self.llm.embed("hi?", pooling_params=short, use_tqdm=False)
        self.assertEqual(output.outputs.embedding, [1.0])

    def test_scores_are_cosines_of_pairs(self):
        one = self.llm.score("hi?", ["hi?", "forever?", "x"], use_tqdm=False)
        self.assertEqual([output.outputs.score for output in one], [1.0, 1.0, 1.0])
        self.assertEqual(one[0].prompt_token_ids, list(b"hi?hi?"))
        self.assertEqual(len(self.llm.score(["a", "b"], ["c", "d"], use_tqdm=False)), 2)
        with self.assertRaisesRegex(ValueError, "2 texts to compare with 3"):
            self.llm.score(["a", "b"], ["c", "d", "e"])
        with self.assertRaisesRegex(ValueError, "text_2"):
            self.llm.score("a", "")

    def test_wrong_demands_are_refused(self):
        for wrong in ({"pooling": "max"}, {"dimensions": 0}, {"normalize": 5},
                      {"truncate_prompt_tokens": 0}):
            with self.assertRaises(ValueError, msg=wrong):
                PoolingParams(**wrong)
        with self.assertRaisesRegex(NotImplementedError, "classify"):
            PoolingParams(task="classify")
        with self.assertRaisesRegex(ValueError, "2 prompts and 3 pooling_params"):
            self.llm.encode(["a", "b"], [PoolingParams()] * 3)
        with self.assertRaises(ValueError):
            self.llm.embed("x" * 600, use_tqdm=False)
        cut = self.llm.embed("x" * 600 + "hi?", truncate_prompt_tokens=3, use_tqdm=False)
        self.assertEqual(cut[0].prompt_token_ids, list(b"hi?"))
        with self.assertRaisesRegex(RuntimeError, "script says no"):
            self.llm.embed("error?on", use_tqdm=False)


class InterruptTest(unittest.TestCase):
    def test_ctrl_c_ends_a_call_at_once_and_cancels_its_requests(self):
        # Background processes of a shell start with SIGINT ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with LLM(script_model(SLOW), **OPTIONS) as llm:
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            started = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                llm.generate(["forever?"] * 4, GREEDY_LONG, use_tqdm=False)
            self.assertLess(time.monotonic() - started, 3.0)
            self.assertTrue(eventually(lambda: llm.stats()["running_count"] == 0))
            self.assertEqual(only(llm.generate("hi?", GREEDY, use_tqdm=False)).text, GREETING)

    def test_other_threads_run_while_one_waits(self):
        with LLM(script_model(SLOW), **OPTIONS) as llm:
            worker = threading.Thread(
                target=llm.generate, args=("forever?", GREEDY), kwargs={"use_tqdm": False})
            worker.start()
            count = 0
            while worker.is_alive():
                count += 1
                time.sleep(0.001)
            self.assertGreater(count, 50)

    def test_threads_may_generate_at_once(self):
        with LLM(script_model(SLOW), **OPTIONS) as llm:
            texts = []

            def work(i):
                outputs = llm.generate([f"{i} hi?"] * 3, GREEDY, use_tqdm=False)
                texts.extend(output.outputs[0].text for output in outputs)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(texts, [GREETING] * 18)


GREEDY_LONG = SamplingParams(temperature=0, max_tokens=1700)


def eventually(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def run_python(code):
    """Runs a program in a new interpreter; gives what subprocess.run gives."""
    here = str(pathlib.Path(__file__).resolve().parent)
    code = f"import sys; sys.path.insert(0, {here!r})\n" + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=False)


class LifeTest(unittest.TestCase):
    def test_close_ends_what_runs_and_what_comes_later_is_refused(self):
        llm = LLM(script_model(SLOW), **OPTIONS)
        errors = []

        def work():
            try:
                llm.generate("forever?", GREEDY_LONG, use_tqdm=False)
            except kun.CancelledError as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        self.assertTrue(eventually(lambda: llm.stats()["running_count"] == 1))
        llm.close()
        llm.close()
        thread.join(5)
        self.assertFalse(thread.is_alive())
        self.assertEqual(len(errors), 1)
        with self.assertRaisesRegex(kun.UnavailableError, "closed"):
            llm.generate("hi?", GREEDY)

    def test_an_interpreter_ends_cleanly_with_a_model_open_and_at_work(self):
        result = run_python(
            "import threading, time\n"
            "from kun import LLM, SamplingParams\n"
            "from scripts import SLOW, script_model\n"
            "llm = LLM(script_model(SLOW), kv_cache_memory_bytes=1 << 22)\n"
            "params = SamplingParams(max_tokens=1700)\n"
            "work = lambda: llm.generate('forever?', params, use_tqdm=False)\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "time.sleep(0.2)\n"
            "print('end')\n")
        self.assertEqual((result.returncode, result.stdout), (0, "end\n"), result.stderr)
        self.assertNotIn("nanobind", result.stderr)

    def test_an_interpreter_ends_cleanly_while_a_call_comes_back(self):
        result = run_python(
            "import threading, time\n"
            "from kun import LLM, _kun\n"
            "from scripts import FAST, script_model\n"
            "class Slow:\n"
            "    def __del__(self, sleep=time.sleep):\n"
            "        sleep(1)\n"
            "slow = Slow()\n"
            "llm = LLM(script_model(FAST), kv_cache_memory_bytes=1 << 22)\n"
            "batch = _kun.Batch(llm._core.native)\n"
            "threading.Thread(target=batch.wait, args=(0.5,), daemon=True).start()\n"
            "print('end')\n")
        self.assertEqual((result.returncode, result.stdout), (0, "end\n"), result.stderr)

    def test_a_child_of_fork_is_told_and_ends(self):
        result = run_python(
            "import os\n"
            "from kun import LLM, UnavailableError\n"
            "from scripts import FAST, script_model\n"
            "llm = LLM(script_model(FAST), kv_cache_memory_bytes=1 << 22)\n"
            "if os.fork() == 0:\n"
            "    try:\n"
            "        llm.generate('hi?', use_tqdm=False)\n"
            "    except UnavailableError as error:\n"
            "        print('child:', 'fork' in str(error), flush=True)\n"
            "    sys.exit(3)\n"
            "_, status = os.wait()\n"
            "finished = llm.generate('hi?', use_tqdm=False)[0].finished\n"
            "print('parent:', os.WEXITSTATUS(status), finished)\n")
        self.assertEqual(result.stdout, "child: True\nparent: 3 True\n", result.stderr)
        self.assertEqual(result.returncode, 0)

    def test_a_dropped_llm_frees_its_threads(self):
        def thread_count():
            return len(os.listdir("/proc/self/task"))

        before = thread_count()
        llm = LLM(script_model(FAST), **OPTIONS)
        self.assertGreater(thread_count(), before)
        del llm
        self.assertTrue(eventually(lambda: thread_count() == before))


class ProgressTest(ScriptedLlm):
    def test_a_function_makes_the_bar(self):
        bar = mock.Mock()
        make = mock.Mock(return_value=bar)
        self.llm.generate(["a?", "b?"], GREEDY, use_tqdm=make)
        self.assertEqual(make.call_args.kwargs["total"], 2)
        self.assertEqual([call.args for call in bar.update.call_args_list], [(1,), (1,)])
        bar.close.assert_called_once_with()

    def test_without_tqdm_there_is_a_plain_line_and_with_false_none(self):
        for use, text in ((True, "Processed prompts: 2/2 ["), (False, "")):
            stream = io.StringIO()
            with mock.patch.dict(sys.modules, {"tqdm": None, "tqdm.auto": None}):
                with redirect_stderr(stream):
                    self.llm.generate(["a?", "b?"], GREEDY, use_tqdm=use)
            self.assertTrue(stream.getvalue().startswith(text), stream.getvalue())
            self.assertEqual(bool(stream.getvalue()), use)


class OptionsTest(unittest.TestCase):
    def test_names_of_vllm_without_meaning_warn_and_say_why(self):
        for name, value in (("enforce_eager", True), ("swap_space", 4), ("quantization", "awq"),
                            ("trust_remote_code", True), ("gpu_memory_utilization", 0.9)):
            with self.assertWarnsRegex(kun.KunWarning, name) as caught:
                LLM(script_model(FAST), **{name: value}, **OPTIONS).close()
            self.assertEqual(caught.filename, __file__)

    def test_usual_values_pass_in_silence(self):
        usual = {name: value for name, (value, _) in
                 {**_options._NO_EFFECT, **_options._REFUSED}.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            LLM(script_model(FAST), tensor_parallel_size=1, **usual, **OPTIONS).close()

    def test_names_that_would_change_results_are_refused_with_what_to_do(self):
        wrong = {name: object() for name in _options._REFUSED}
        wrong.update(tensor_parallel_size=2, dtype="float16")
        for name, value in wrong.items():
            with self.assertRaisesRegex(NotImplementedError, f"{name}=.* is not supported: .+"):
                LLM(script_model(FAST), **{name: value})

    def test_unknown_names_and_wrong_values_are_errors(self):
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'max_modle_len'"):
            LLM(script_model(FAST), max_modle_len=5)
        for wrong in ({"dtype": "int3"}, {"max_model_len": 0}, {"max_model_len": "many"},
                      {"max_num_seqs": 0}, {"threads": -1}, {"gpu_memory_utilization": 2.0},
                      {"kv_cache_memory_bytes": 0}, {"kernels": "abacus"}, {"max_logprobs": -1},
                      {"kv_cache_dtype": "int3"}):
            with self.assertRaises(ValueError, msg=wrong):
                LLM(script_model(FAST), **wrong)

    def test_caches_of_int8_are_taken_and_fp8_names_them(self):
        LLM(script_model(FAST), kv_cache_dtype="int8", **OPTIONS).close()
        with self.assertRaisesRegex(NotImplementedError, "fp8_e4m3 is not supported.*use int8"):
            LLM(script_model(FAST), kv_cache_dtype="fp8_e4m3")

    def test_lengths_are_read_as_vllm_reads_them(self):
        for given, length in ((100, 100), ("0.2k", 200), ("0.25K", 256), (None, 512), (-1, 512)):
            with LLM(script_model(FAST), max_model_len=given, **OPTIONS) as llm:
                self.assertEqual(llm.max_model_len, length)

    def test_defaults_of_the_model_can_be_overridden(self):
        options = {"override_generation_config": {"temperature": 0.5, "max_new_tokens": 3}}
        with LLM(script_model(FAST), **options, **OPTIONS) as llm:
            params = llm.get_default_sampling_params()
            self.assertEqual((params.temperature, params.max_tokens), (0.5, 3))
            self.assertEqual(len(only(llm.generate("hi?", use_tqdm=False)).token_ids), 3)


# The fields of vLLM's SamplingParams, present and past.
VLLM_FIELDS = """n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k
min_p seed stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs
logprob_token_ids flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens include_stop_str_in_output output_kind structured_outputs guided_decoding
logit_bias allowed_token_ids bad_words extra_args skip_reading_prefix_cache logits_processors
thinking_token_budget repetition_detection best_of use_beam_search length_penalty early_stopping
""".split()


class SamplingParamsTest(unittest.TestCase):
    def test_every_field_of_vllm_is_there(self):
        self.assertEqual(set(VLLM_FIELDS), set(SamplingParams.__dataclass_fields__))

    def test_structured_outputs_need_exactly_one_demand(self):
        for given in ({}, {"json": {}, "regex": "a"}, {"choice": "ab"}, {"regex": ""},
                      {"choice": [1]}, {"json": {"a": object()}}, {"other": 1}, 7):
            with self.assertRaises(ValueError, msg=given):
                params = SamplingParams(structured_outputs=given)
                params.structured_outputs.demand()
        with self.assertRaisesRegex(ValueError, "structural_tag must be JSON text or a dict"):
            StructuredOutputsParams(structural_tag=7)
        with self.assertRaisesRegex(ValueError, "not both"):
            SamplingParams(structured_outputs={"regex": "a"}, guided_decoding={"regex": "a"})

    def test_what_is_not_supported_is_refused_and_its_default_is_not(self):
        for name in sampling_params._UNSUPPORTED:
            with self.assertRaisesRegex(NotImplementedError, f"{name}=.* is not supported: .+"):
                SamplingParams(**{name: 7})
            default = SamplingParams.__dataclass_fields__[name].default
            SamplingParams(**{name: default})
        SamplingParams(n=2, best_of=2)

    def test_values_out_of_range_are_value_errors_that_name_the_field(self):
        for name, values in {
            "temperature": (-0.1, float("nan"), float("inf"), "1", None),
            "top_p": (0.0, 1.1, True),
            "top_k": (-2, 1.5),
            "min_p": (-0.1, 1.1),
            "n": (0, 1.0, True, "2"),
            "presence_penalty": (-2.1, 2.1),
            "frequency_penalty": (-2.1, 2.1),
            "repetition_penalty": (0.0, -1.0),
            "max_tokens": (0, -1, 2**31),
            "min_tokens": (-1, 17),
            "logprobs": (-2, -1, 1.5),
            "seed": ("x", 2**64),
            "stop": ("", ["a", ""], [5]),
            "stop_token_ids": ([-1], ["a"]),
            "truncate_prompt_tokens": (0, -2),
            "prompt_logprobs": (-1, 1.5),
            "allowed_token_ids": ([], [-1], ["a"], 5),
            "bad_words": ([""], [1], "abc"),
            "logit_bias": ({"5": 1.0}, {5: 101.0}, {5: "x"}),
        }.items():
            for value in values:
                with self.assertRaisesRegex(ValueError, name):
                    SamplingParams(**{name: value})

    def test_a_clone_shares_nothing(self):
        params = SamplingParams(stop=["a"])
        other = params.clone()
        other.stop.append("b")
        self.assertEqual(params.stop, ["a"])


class StubsTest(unittest.TestCase):
    def test_the_stubs_are_those_of_the_extension_module(self):
        stub = pathlib.Path(kun.__file__).with_name("_kun.pyi")
        tree = ast.parse(stub.read_text())

        def names(body):
            for node in body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    yield node.name
                elif isinstance(node, ast.AnnAssign):
                    yield node.target.id

        def public(thing):
            return {name for name in vars(thing) if not name.startswith("_")}

        stubbed = set(names(tree.body))
        self.assertEqual(stubbed - {"__version__"}, public(_kun))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                own = set(names(node.body)) - {"__init__"}
                self.assertEqual(own, public(getattr(_kun, node.name)), node.name)
        self.assertTrue(stub.with_name("py.typed").exists())

    def test_everything_public_has_a_docstring(self):
        for name in kun.__all__:
            thing = getattr(kun, name)
            if isinstance(thing, type):
                self.assertTrue(thing.__doc__, name)
                for member, value in vars(thing).items():
                    if callable(value) and not member.startswith("_"):
                        self.assertTrue(value.__doc__, f"{name}.{member}")


if __name__ == "__main__":
    unittest.main()
