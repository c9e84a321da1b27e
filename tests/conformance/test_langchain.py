"""LangChain's OpenAI integration against a running `kun serve`."""

import asyncio
import json
import os

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

BASE = os.environ["KUN_URL"] + "/v1"
MODEL = os.environ["KUN_MODEL_NAME"]


def chat(**options):
    settings = {"base_url": BASE, "api_key": "none", "model": MODEL, "max_tokens": 12,
                "temperature": 0, "max_retries": 0, "timeout": 120}
    return ChatOpenAI(**{**settings, **options})


class Place(BaseModel):
    """A place."""

    city: str = Field(max_length=12)


@tool
def look_up(city: str) -> str:
    """Tells about a city."""
    return f"{city} is large."


def test_invokes():
    answer = chat().invoke([SystemMessage("Be brief."), HumanMessage("Say hello.")])
    assert answer.content
    assert answer.usage_metadata["total_tokens"] == (
        answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"])
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def test_a_stream_adds_up_to_the_answer():
    whole = chat().invoke("Say hello.").content
    chunks = list(chat(stream_usage=True).stream("Say hello."))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.content == whole
    assert total.usage_metadata["output_tokens"] > 0


def test_batches_and_asyncio():
    prompts = [f"Count to {n}." for n in range(2, 6)]
    answers = chat().batch(prompts)
    assert all(answer.content for answer in answers)

    async def run():
        return await asyncio.gather(*(chat().ainvoke(prompt) for prompt in prompts))

    assert [a.content for a in asyncio.run(run())] == [a.content for a in answers]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(method):
    place = chat(max_tokens=100).with_structured_output(Place, method=method).invoke("A city.")
    assert isinstance(place, Place)


def test_tools_there_and_back():
    bound = chat(max_tokens=100).bind_tools([look_up], tool_choice="look_up", strict=True)
    asked = bound.invoke("Tell me about Paris.")
    (call,) = asked.tool_calls
    assert call["name"] == "look_up" and set(call["args"]) == {"city"}
    said = ToolMessage(look_up.invoke(call["args"]), tool_call_id=call["id"])
    assert isinstance(chat().invoke([HumanMessage("Paris?"), asked, said]), AIMessage)


def test_calls_stream_in_pieces():
    bound = chat(max_tokens=100).bind_tools([look_up], tool_choice="look_up", strict=True)
    pieces = [c for chunk in bound.stream("Paris?") for c in chunk.tool_call_chunks]
    assert set(json.loads("".join(c["args"] or "" for c in pieces))) == {"city"}


def test_logprobs_and_several_choices():
    answer = chat(logprobs=True, top_logprobs=2).invoke("Say hello.")
    assert answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]
    result = chat(n=2, temperature=1, seed=5).generate([[HumanMessage("Say hello.")]])
    assert len(result.generations[0]) == 2


def test_the_responses_api():
    assert chat(use_responses_api=True, max_tokens=16).invoke("Say hello.").text


def test_text_completions():
    model = OpenAI(base_url=BASE, api_key="none", model=MODEL, max_tokens=6, temperature=0)
    assert model.invoke("One, two, three,")
    assert "".join(model.stream("One, two, three,")) == model.invoke("One, two, three,")


def test_errors():
    with pytest.raises(openai.BadRequestError):
        chat(temperature=9).invoke("x")
