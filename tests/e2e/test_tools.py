"""Tools through the whole stack, with a model that was never taught any."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam

from tests.e2e.conftest import Server

WEATHER: ChatCompletionToolUnionParam = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
QUESTION: ChatCompletionMessageParam = {"role": "user", "content": "What is 2 plus 3?"}


def test_a_model_without_tools_can_be_asked_with_some(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    plain = client.chat.completions.create(model=server.model, messages=[QUESTION], temperature=0, max_tokens=64)
    whole = client.chat.completions.create(
        model=server.model, messages=[QUESTION], tools=[WEATHER], temperature=0, max_tokens=64
    )
    assert whole.usage is not None
    assert plain.usage is not None
    # It is told of them, whatever it makes of it.
    assert whole.usage.prompt_tokens > plain.usage.prompt_tokens + 50
    chunks = list(
        client.chat.completions.create(
            model=server.model, messages=[QUESTION], tools=[WEATHER], temperature=0, max_tokens=64, stream=True
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == (whole.choices[0].message.content or "")
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_conversation_with_calls_goes_on(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model=server.model,
        messages=[
            QUESTION,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "x"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "Rain."},
        ],
        tools=[WEATHER],
        temperature=0,
        max_tokens=16,
    )
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_beside_a_structure_an_answer_is_calls_or_the_structure(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    number = {"type": "object", "properties": {"sum": {"type": "integer", "maximum": 99}}, "required": ["sum"]}
    schema = number | {"additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    answer = client.chat.completions.create(
        model=server.model, messages=[QUESTION], tools=[WEATHER], response_format=form, n=8, temperature=1.5, seed=1,
        max_tokens=120,
    )  # fmt: skip
    for choice in answer.choices:
        if choice.finish_reason == "tool_calls":
            assert choice.message.content is None
            assert [call.function.name for call in choice.message.tool_calls or [] if call.type == "function"]
        elif choice.finish_reason == "stop":
            jsonschema.Draft202012Validator(number).validate(json.loads(choice.message.content or ""))
    assert {choice.finish_reason for choice in answer.choices} & {"tool_calls", "stop"}
