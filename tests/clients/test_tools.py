"""The official OpenAI and Anthropic clients against a `kun serve` whose model is a script that
thinks and calls tools (see run.sh and tools.script)."""

import json
import os
import unittest

import anthropic
import openai

BASE = os.environ["KUN_URL"]
# Strict: an answer that is not what the client's own types say is an error.
STRICT = {"api_key": "none", "max_retries": 0, "timeout": 60, "_strict_response_validation": True}
client = openai.OpenAI(base_url=BASE + "/v1", **STRICT)
claude = anthropic.Anthropic(base_url=BASE, **STRICT)
MODEL = client.models.list().data[0].id
HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = [{"role": "user", "content": "How is the weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


def chat(messages, **options):
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


class OpenAi(unittest.TestCase):
    def test_thoughts_stand_apart(self):
        answer = chat(HELLO)
        message = answer.choices[0].message
        self.assertEqual(message.content, "Hello there.")
        self.assertEqual(message.reasoning_content, "A greeting.")
        self.assertGreater(answer.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_calls_tools_and_reads_their_results(self):
        answer = chat(WEATHER, tools=TOOLS)
        message = answer.choices[0].message
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
        self.assertEqual(cities, ["Paris", "Rome"])
        self.assertEqual(len({call.id for call in message.tool_calls}), 2)
        results = [{"role": "tool", "tool_call_id": call.id, "content": "sun"}
                   for call in message.tool_calls]
        last = chat([*WEATHER, message, *results], tools=TOOLS)
        self.assertEqual(last.choices[0].message.content, "It is sunny.")

    def test_the_stream_helper_adds_up_to_the_answer(self):
        whole = chat(WEATHER, tools=TOOLS).choices[0].message
        with client.chat.completions.stream(model=MODEL, messages=WEATHER, tools=TOOLS) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        self.assertEqual(message.content, whole.content)
        self.assertEqual([(c.function.name, c.function.arguments) for c in message.tool_calls],
                         [(c.function.name, c.function.arguments) for c in whole.tool_calls])

    def test_one_call_at_a_time(self):
        message = chat(WEATHER, tools=TOOLS, parallel_tool_calls=False).choices[0].message
        self.assertEqual(len(message.tool_calls), 1)

    def test_no_tools_no_calls(self):
        message = chat(WEATHER, tools=TOOLS, tool_choice="none").choices[0].message
        self.assertIsNone(message.tool_calls)
        self.assertIn("<tool_call>", message.content)

    def test_deepseeks_path(self):
        deepseek = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0, timeout=60)
        answer = deepseek.chat.completions.create(model=MODEL, messages=HELLO)
        self.assertEqual(answer.choices[0].message.reasoning_content, "A greeting.")
        usage = answer.usage
        self.assertEqual(usage.prompt_cache_hit_tokens + usage.prompt_cache_miss_tokens,
                         usage.prompt_tokens)
        with self.assertRaises(openai.UnprocessableEntityError):
            deepseek.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)

    def test_responses(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS,
                  "strict": False}]
        answer = client.responses.create(model=MODEL, input="How is the weather?", tools=tools)
        kinds = [item.type for item in answer.output]
        self.assertEqual(kinds, ["reasoning", "message", "function_call", "function_call"])
        self.assertEqual(answer.output_text, "I look it up.")
        outputs = [{"type": "function_call_output", "call_id": item.call_id, "output": "sun"}
                   for item in answer.output if item.type == "function_call"]
        last = client.responses.create(model=MODEL, input=outputs, tools=tools,
                                       previous_response_id=answer.id)
        self.assertEqual(last.output_text, "It is sunny.")
        self.assertEqual(client.responses.retrieve(last.id).output_text, "It is sunny.")
        client.responses.delete(last.id)
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve(last.id)

    def test_responses_stream(self):
        text = ""
        with client.responses.stream(model=MODEL, input="Say hello.") as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
            final = stream.get_final_response()
        self.assertEqual(text, "Hello there.")
        self.assertEqual(final.output_text, "Hello there.")


class Anthropic(unittest.TestCase):
    TOOLS = [{"name": "get_weather", "input_schema": PARAMETERS}]

    def test_answers_in_blocks(self):
        message = claude.messages.create(model=MODEL, max_tokens=500, messages=HELLO)
        self.assertEqual([block.type for block in message.content], ["thinking", "text"])
        self.assertEqual(message.content[1].text, "Hello there.")
        self.assertEqual(message.stop_reason, "end_turn")

    def test_calls_tools_and_reads_their_results(self):
        message = claude.messages.create(model=MODEL, max_tokens=500, messages=WEATHER,
                                         tools=self.TOOLS)
        self.assertEqual(message.stop_reason, "tool_use")
        uses = [block for block in message.content if block.type == "tool_use"]
        self.assertEqual([use.input for use in uses], [{"city": "Paris"}, {"city": "Rome"}])
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "sun"} for use in uses]
        last = claude.messages.create(
            model=MODEL, max_tokens=500, tools=self.TOOLS,
            messages=[*WEATHER, {"role": "assistant", "content": message.content},
                      {"role": "user", "content": results}])
        self.assertEqual(last.content[-1].text, "It is sunny.")

    def test_the_stream_helper_adds_up_to_the_answer(self):
        with claude.messages.stream(model=MODEL, max_tokens=500, messages=WEATHER,
                                    tools=self.TOOLS) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual(text, "I look it up.")
        self.assertEqual([b.input for b in message.content if b.type == "tool_use"],
                         [{"city": "Paris"}, {"city": "Rome"}])

    def test_lists_models(self):
        models = list(claude.models.list())
        self.assertEqual([model.id for model in models], [MODEL])
        self.assertEqual(claude.models.retrieve(MODEL).display_name, MODEL)

    def test_counts_tokens(self):
        count = claude.messages.count_tokens(model=MODEL, messages=HELLO)
        message = claude.messages.create(model=MODEL, max_tokens=5, messages=HELLO)
        self.assertEqual(count.input_tokens, message.usage.input_tokens +
                         message.usage.cache_read_input_tokens)

    def test_errors_are_its_own(self):
        with self.assertRaises(anthropic.NotFoundError):
            claude.messages.create(model="nobody", max_tokens=5, messages=HELLO)
        with self.assertRaises(anthropic.BadRequestError):
            claude.messages.create(model=MODEL, max_tokens=5, messages=HELLO,
                                   extra_body={"temperature": 9})


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    bad = len(result.failures) + len(result.errors)
    print(f"python: {result.testsRun - bad} passed, {bad} failed")
    raise SystemExit(bad > 0)
