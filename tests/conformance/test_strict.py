"""The clients' own models of answers, in their strict mode, where their API tests do not reach."""

import os

import anthropic
import openai
import pytest

BASE = os.environ["KUN_URL"]
MODEL = os.environ["KUN_MODEL_NAME"]
gpt = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0,
                    _strict_response_validation=True)
claude = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0,
                             _strict_response_validation=True)
HELLO = [{"role": "user", "content": "Say hello."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
          "required": ["city"], "additionalProperties": False}


def test_responses():
    answer = gpt.responses.create(model=MODEL, input="Say hello.", max_output_tokens=8)
    assert answer.output_text
    again = gpt.responses.retrieve(answer.id)
    assert again.output_text == answer.output_text
    more = gpt.responses.create(model=MODEL, input="And again.", max_output_tokens=8,
                                previous_response_id=answer.id)
    assert more.usage.input_tokens > answer.usage.input_tokens
    gpt.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        gpt.responses.retrieve(answer.id)


def test_response_events():
    settings = {"model": MODEL, "input": "Say hello.", "temperature": 0}
    events = list(gpt.responses.create(**settings, max_output_tokens=8, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert events[-1].response.output_text == text
    with gpt.responses.stream(**settings) as stream:
        assert stream.get_final_response().output_text


def test_response_tools():
    tool = {"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": True}
    answer = gpt.responses.create(model=MODEL, input="Paris?", tools=[tool],
                                  tool_choice={"type": "function", "name": "look_up"})
    assert [item.type for item in answer.output] == ["function_call"]


@pytest.mark.parametrize("options", [
    {}, {"n": 2, "temperature": 1}, {"logprobs": True, "top_logprobs": 3},
    {"tools": [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}],
     "tool_choice": "required", "max_tokens": 100},
    {"response_format": {"type": "json_schema",
                         "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}},
])
def test_chats(options):
    settings = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "temperature": 0, **options}
    assert gpt.chat.completions.create(**settings).choices[0].finish_reason
    assert list(gpt.chat.completions.create(**settings, stream=True))


def test_completions_of_many_prompts():
    # Without echo: the client's model has no null for the first token, OpenAI's answers do.
    answer = gpt.completions.create(model=MODEL, prompt=["One,", "Two,"], logprobs=2, max_tokens=4)
    assert len(answer.choices) == 2


def test_messages():
    answer = claude.messages.create(model=MODEL, max_tokens=8, messages=HELLO)
    assert answer.content[0].text
    tool = {"name": "look_up", "input_schema": SCHEMA}
    called = claude.messages.create(model=MODEL, max_tokens=100, messages=HELLO, tools=[tool],
                                    tool_choice={"type": "tool", "name": "look_up"})
    assert called.stop_reason == "tool_use" and set(called.content[-1].input) == {"city"}
    with claude.messages.stream(model=MODEL, max_tokens=8, messages=HELLO) as stream:
        assert stream.get_final_message().usage.output_tokens > 0
    assert claude.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens > 0
