"""What may be asked in a chat: OpenAI's messages and tools."""

from __future__ import annotations

from typing import Any

import pytest

from quire.client import Tool, ToolCall
from quire.offline.conversations import parse_conversations, parse_tools
from quire.offline.prompts import Message, Prompt

WEATHER = {"name": "get_weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}


def test_a_conversation_or_several() -> None:
    one: Message = {"role": "user", "content": "Hello", "name": "x"}
    parts: Message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}

    assert parse_conversations([one], {"continue_final_message": True}) == [
        Prompt(messages=(one,), template={"continue_final_message": True})
    ]
    assert parse_conversations([[one], [one, parts]], {}) == [
        Prompt(messages=(one,), template={}),
        Prompt(messages=(one, {"role": "user", "content": "a\nb"}), template={}),
    ]
    assert parse_conversations([], {}) == []


def test_calls_their_results_and_reasoning_are_the_clients() -> None:
    by_text = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    by_value = {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"x": 1}}}
    messages: list[Message] = [
        {"role": "assistant", "content": None, "tool_calls": [by_text, by_value], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "1", "content": "fine"},
    ]
    (prompt,) = parse_conversations(messages, {})

    assert prompt.messages == (
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "tool_calls": [ToolCall("1", "f", '{"x": 1}'), ToolCall("2", "g", '{"x": 1}')],
        },
        {"role": "tool", "content": "fine", "tool_call_id": "1"},
    )


def test_tools_are_openai_s_or_the_clients() -> None:
    mine = Tool("f")
    assert parse_tools([{"type": "function", "function": WEATHER}, mine]) == [
        Tool("get_weather", "The weather.", {"type": "object", "properties": {}}),
        mine,
    ]
    for given in ({"type": "function"}, {"function": {"description": "x"}}, "get_weather"):
        with pytest.raises(TypeError, match=r"tools\[0\] is not a function"):
            parse_tools([given])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([[]], r"messages\[0\] is not a list of messages"),
        (["Hello"], r"messages\[0\] is not a list of messages"),
        ([{"content": "x"}], r"messages\[0\] is not a message"),
        ([[{"role": "user"}]], r"messages\[0\]\[0\]\['content'\] is NoneType"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[0\]\['content'\]\[0\] is not a text part",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "1"}]}],
            r"messages\[0\]\['tool_calls'\]\[0\] is not a tool call",
        ),
    ],
)
def test_what_is_no_conversation_is_told(given: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        parse_conversations(given, {})
