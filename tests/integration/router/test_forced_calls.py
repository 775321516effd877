"""Calls that a request asks for, through every API: why the message ends, and what of a call that was cut is shown."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from quire.client.aio import AsyncClient
from quire.client.tools import Tool
from tests.integration.router import conftest
from tests.integration.router.conftest import MODEL, Api, StartRouter, answer_text
from tests.integration.router.test_other_apis import post
from tests.unit.router.test_anthropic import blocks_of

# Descriptions of tools are long, for the small tokenizer.
fake_scheduler = functools.partial(conftest.fake_scheduler, max_model_len=4096)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Bonn"]}}, "required": ["city"]}
ARGUMENTS = '{"city": "Bonn"}'
ARRAY = f'[{{"name": "get_weather", "parameters": {ARGUMENTS}}}]'
USER = {"role": "user", "content": "Bonn?"}


async def anthropic(api: Api, choice: dict[str, str], stream: bool) -> tuple[str, list[Any]]:
    """Why a message ended, and its blocks."""
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    body = {"model": MODEL, "max_tokens": 100, "messages": [USER], "tools": [tool], "tool_choice": choice}
    replies = await post(api, "CreateMessage", body | {"stream": stream})
    if not stream:
        message = json.loads(replies[0])
        return message["stop_reason"], message["content"]
    events = [json.loads(line[6:]) for line in b"".join(replies).decode().splitlines() if line.startswith("data: ")]
    (end,) = (event for event in events if event["type"] == "message_delta")
    return end["delta"]["stop_reason"], blocks_of(events)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "text"), [({"type": "tool", "name": "get_weather"}, ARGUMENTS), ({"type": "any"}, ARRAY)]
)
async def test_anthropic_s_message_ends_in_tool_use(
    start_router: StartRouter, choice: dict[str, str], text: str, stream: bool
) -> None:
    api = await start_router(fake_scheduler(answer_text(text)))
    reason, blocks = await anthropic(api, choice, stream)
    assert reason == "tool_use"
    assert [block["type"] for block in blocks] == ["tool_use"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", range(3, len(ARRAY), 12))
async def test_of_a_call_that_was_cut_only_what_is_a_call_is_shown(
    start_router: StartRouter, length: int, stream: bool
) -> None:
    """The array around it is ours, and no text of the model's."""
    second = f"{ARRAY[:-1]}, {ARRAY[1 : 1 + length]}"
    for text, num_calls in ((ARRAY[:length], 0), (second, 1)):
        api = await start_router(fake_scheduler(answer_text(text)))
        _, blocks = await anthropic(api, {"type": "any"}, stream)
        shown = [block for block in blocks if block["type"] == "text"]
        assert not any(block["text"] for block in shown)
        assert len(blocks) - len(shown) in (num_calls, num_calls + 1)


async def test_a_named_function_ends_with_stop_in_openai_s_chats_alone(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text(ARGUMENTS)))
    named = {"type": "function", "function": {"name": "get_weather"}}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
    reply = await api.chat(tools=tools, tool_choice=named)
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    async with AsyncClient(api.address) as client:
        result = await client.chat([USER], tools=[Tool("get_weather", parameters=SCHEMA)], tool_choice="get_weather")
    assert result.choices[0].finish_reason == "tool_calls"
