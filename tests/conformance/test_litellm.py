"""LiteLLM against a running `kun serve`, through each provider that Kun can stand in for."""

import json
import os

import litellm
import pytest

BASE = os.environ["KUN_URL"]
MODEL = os.environ["KUN_MODEL_NAME"]
HELLO = [{"role": "user", "content": "Say hello."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
          "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
PROVIDERS = {
    "openai": {"model": f"openai/{MODEL}", "api_base": BASE + "/v1"},
    "vllm": {"model": f"hosted_vllm/{MODEL}", "api_base": BASE + "/v1"},
    "deepseek": {"model": f"deepseek/{MODEL}", "api_base": BASE + "/beta"},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": BASE},
}
CHAT = ["openai", "vllm", "deepseek"]

litellm.telemetry = False
litellm.suppress_debug_info = True


def complete(provider, **options):
    settings = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "api_key": "none",
                "num_retries": 0, "timeout": 120}
    return litellm.completion(**{**settings, **PROVIDERS[provider], **options})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_answers_with_usage(provider):
    answer = complete(provider)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 12


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stream_adds_up_to_the_answer(provider):
    whole = complete(provider).choices[0].message.content
    chunks = list(complete(provider, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    built = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert built.choices[0].message.content == whole
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("provider", CHAT)
def test_a_forced_call_validates(provider):
    answer = complete(provider, tools=[TOOL], max_tokens=100,
                      tool_choice={"type": "function", "function": {"name": "look_up"}})
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "look_up"
    assert set(json.loads(call.function.arguments)) == {"city"}


@pytest.mark.parametrize("provider", ["openai", "vllm"])
def test_a_schema_is_kept(provider):
    format = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA,
                                                     "strict": True}}
    answer = complete(provider, response_format=format, max_tokens=60)
    assert set(json.loads(answer.choices[0].message.content)) == {"city"}


@pytest.mark.parametrize("provider", CHAT)
def test_errors_are_litellms_own(provider):
    with pytest.raises(litellm.BadRequestError):
        complete(provider, temperature=9)
    with pytest.raises((litellm.NotFoundError, litellm.BadRequestError)):
        complete(provider, model=PROVIDERS[provider]["model"].split("/")[0] + "/nobody")
    with pytest.raises((litellm.ContextWindowExceededError, litellm.BadRequestError)):
        complete(provider, messages=[{"role": "user", "content": "word " * 5000}])


def test_text_completions():
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", api_base=BASE + "/v1", api_key="none",
        prompt="One, two, three,", max_tokens=5, temperature=0)
    assert answer.choices[0].text


def test_responses():
    answer = litellm.responses(model=f"openai/{MODEL}", api_base=BASE + "/v1", api_key="none",
                               input="Say hello.", max_output_tokens=8)
    assert answer.output[0].content[0].text


def test_many_at_once():
    answers = litellm.batch_completion(
        messages=[[{"role": "user", "content": f"Count to {n}."}] for n in range(2, 8)],
        max_tokens=8, api_key="none", **PROVIDERS["openai"])
    assert all(answer.choices[0].message.content for answer in answers)
