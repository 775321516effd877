"""Anthropic's bodies into conversations, and messages into Anthropic's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from services.router.apis.anthropic.body import MessagesBody
from services.router.apis.anthropic.errors import anthropic_error
from services.router.apis.anthropic.writer import AnthropicWriter
from services.router.chat.message import EndReason, Message, MessageDelta, ToolCallDelta
from services.router.chat.request import ChatRequest
from services.router.chat.tools import ToolChoice, ToolMode
from services.router.errors import ApiError, ErrorKind, invalid, overloaded
from services.router.generation.usage import Usage
from services.router.grammar.structure import Structure, StructureKind
from services.router.http.reader import parse_body

USER = {"role": "user", "content": "Hello"}
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
USAGE = Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=6)
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def chat(**body: Any) -> ChatRequest:
    given = {"model": "m", "max_tokens": 8, "messages": [USER]} | body
    return parse_body(json.dumps(given).encode(), MessagesBody).to_chat()


def refused(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**body)
    return caught.value


def test_what_the_options_become() -> None:
    request = chat(
        system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief.", "cache_control": {}}],
        stop_sequences=["#"], temperature=0.5, top_p=0.5, top_k=7, thinking={"type": "disabled"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    )  # fmt: skip
    options = request.options
    assert request.messages == [{"role": "system", "content": "Be\nbrief."}, USER]
    assert (options.sampling.temperature, options.sampling.top_p, options.sampling.top_k) == (0.5, 0.5, 7)
    assert (options.stop.max_tokens, options.stop_strings) == (8, ("#",))
    assert options.structure == Structure(
        StructureKind.JSON_SCHEMA, '{"type": "object"}', "output_config.format.schema"
    )
    assert request.template_kwargs == {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}
    given = {"enable_thinking": True}
    assert chat(thinking={"type": "disabled"}, chat_template_kwargs=given).template_kwargs == given
    assert request.add_generation_prompt
    assert chat().template_kwargs is None


def test_blocks_become_messages() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "2 + 3"}, {"type": "text", "text": "?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Add.", "signature": "s"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "5"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "0"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    calls = [
        {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
        {"id": "t2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ]
    assert chat(messages=turns).messages == [
        {"role": "user", "content": "2 + 3\n?"},
        {
            "role": "assistant", "content": "Let me see.", "reasoning_content": "Add.", "reasoning": "Add.",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "t1", "content": "5"},
        {"role": "tool", "tool_call_id": "t2", "content": "0"},
        {"role": "user", "content": "So?"},
    ]  # fmt: skip


def test_an_assistant_s_last_turn_is_gone_on_with() -> None:
    request = chat(messages=[USER, {"role": "assistant", "content": "Hi"}])
    assert (request.add_generation_prompt, request.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice(ToolMode.REQUIRED)),
        ({"type": "tool", "name": "add"}, ToolChoice(ToolMode.NAMED, "add")),
        ({"type": "none"}, ToolChoice(ToolMode.NONE)),
    ],
)
def test_tools_and_their_choice(choice: dict[str, Any], expected: ToolChoice) -> None:
    request = chat(tools=[ADD], tool_choice=choice)
    (tool,) = request.tools
    assert (tool.name, tool.description, tool.parameters, tool.strict) == ("add", "Adds.", {"type": "object"}, False)
    assert request.tool_choice == expected
    assert request.tool_path.schema(1) == "tools[1].input_schema"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": ["text"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools[0].type"),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_bad_input_is_named(body: dict[str, Any], param: str) -> None:
    error = refused(**body)
    assert error.param == param
    assert param in error.message


def test_unknown_fields_are_counted_and_known_ones_are_not() -> None:
    body = {"model": "m", "max_tokens": 8, "messages": [USER], "metadata": {"user_id": "u"}, "foo": 1, "bar": 2}
    assert parse_body(json.dumps(body).encode(), MessagesBody).num_ignored_fields == 2
    blocks = [{"type": "text", "text": "x", "citations": None, "foo": 1, "cache_control": {"type": "ephemeral"}}]
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": blocks}, {**USER, "bar": 1}]}
    assert parse_body(json.dumps(body).encode(), MessagesBody).num_ignored_fields == 2
    body["messages"] = [USER, {"role": "assistant", "content": BLOCKS}]
    assert parse_body(json.dumps(body).encode(), MessagesBody).num_ignored_fields == 0


THINK_SAY_CALL = [
    MessageDelta(0, reasoning="Hm", prompt_token_ids=[0] * 10),
    MessageDelta(0, reasoning="m.", content="Let "),
    MessageDelta(0, content="me see."),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, "", "t1", "add"), ToolCallDelta(0, '{"a"')]),
    MessageDelta(0, tool_calls=[ToolCallDelta(0, ": 2}")], end_reason=EndReason.TOOL_CALLS),
]
BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hmm.", "signature": "quire"},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}},
]


def streamed(deltas: list[MessageDelta], shows_thinking: bool = True) -> list[dict[str, Any]]:
    """The stream's events, each checked against the SDK's types and named by its `event:` line."""
    writer = AnthropicWriter("m", shows_thinking)
    data = b"".join(writer.events(delta) for delta in deltas) + writer.end(USAGE)
    events = []
    for text in data.decode().removesuffix("\n\n").split("\n\n"):
        name, payload = text.split("\n")
        event = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            EVENTS.validate_python(event, strict=True)
        events.append(event)
    return events


def whole(deltas: list[MessageDelta], shows_thinking: bool = True) -> Any:
    message = Message()
    for delta in deltas:
        message.add(delta)
    body = json.loads("".join(AnthropicWriter("m", shows_thinking).whole([message], USAGE)))
    AnthropicMessage.model_validate(body, strict=True)
    return body


def blocks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a client puts them together."""
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
                arguments = ""
            case "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] += delta["signature"]
                    case "input_json_delta":
                        arguments += delta["partial_json"]
                        if delta["partial_json"].endswith("}"):
                            block["input"] = json.loads(arguments)
            case "content_block_stop":
                assert event["index"] == len(blocks) - 1
    return blocks


def test_a_whole_message() -> None:
    body = whole(THINK_SAY_CALL)
    assert body["content"] == BLOCKS
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["usage"] == {
        "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 6, "output_tokens": 4,
    }  # fmt: skip


def test_a_streamed_message_has_the_same_blocks() -> None:
    events = streamed(THINK_SAY_CALL)
    assert blocks_of(events) == BLOCKS
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"]["usage"]["input_tokens"] == 10
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"] == whole(THINK_SAY_CALL)["usage"]


def test_thinking_can_be_left_out() -> None:
    hidden = [BLOCKS[0] | {"thinking": ""}, *BLOCKS[1:]]
    assert whole(THINK_SAY_CALL, shows_thinking=False)["content"] == hidden
    assert blocks_of(streamed(THINK_SAY_CALL, shows_thinking=False)) == hidden


@pytest.mark.parametrize(
    ("reason", "stop_reason", "expected"),
    [
        (EndReason.STOP, None, ("end_turn", None)),
        # A stop token, which this API has no name for.
        (EndReason.STOP, 7, ("end_turn", None)),
        (EndReason.STOP, "#", ("stop_sequence", "#")),
        (EndReason.LENGTH, None, ("max_tokens", None)),
    ],
)
def test_why_it_ended(reason: EndReason, stop_reason: str | int | None, expected: tuple[str, str | None]) -> None:
    deltas = [MessageDelta(0, "Hi", end_reason=reason, stop_reason=stop_reason)]
    body, delta = whole(deltas), streamed(deltas)[-2]["delta"]
    assert (body["stop_reason"], body["stop_sequence"]) == expected
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected


def test_errors() -> None:
    assert anthropic_error(invalid("Bad 'x'.", "x")) == {
        "type": "error", "error": {"type": "invalid_request_error", "message": "Bad 'x'."},
    }  # fmt: skip
    kinds = {kind: anthropic_error(ApiError(kind, "why"))["error"]["type"] for kind in ErrorKind}
    assert kinds[ErrorKind.UNAUTHENTICATED] == "authentication_error"
    assert kinds[ErrorKind.UNAVAILABLE] == "overloaded_error"
    event = AnthropicWriter("m", True).error(overloaded("busy")).decode()
    assert event.startswith("event: error\ndata: {")
    assert '"rate_limit_error"' in event


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_a_thread_is_refused_in_the_words_that_sdks_know(thread: dict[str, Any]) -> None:
    body = anthropic_error(refused(thread=thread))
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert "details" not in anthropic_error(refused(container="c"))["error"]
    assert chat(thread=None).messages == [USER]


def test_the_model_learns_that_a_call_failed() -> None:
    def result(**block: Any) -> str:
        called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {}}]}
        given = {"type": "tool_result", "tool_use_id": "t"} | block
        text = chat(messages=[called, {"role": "user", "content": [given]}]).messages[-1]["content"]
        assert isinstance(text, str)
        return text

    assert result(content="no such file", is_error=True) == "Error: no such file"
    assert result(content="error 5", is_error=True) == "error 5"
    assert result(content="5", is_error=False) == "5"


@pytest.mark.parametrize(
    ("edits", "thinking"),
    [
        ([{"type": "clear_thinking_20251015", "keep": "all"}], ["a", "b"]),
        ([{"type": "clear_thinking_20251015", "keep": {"type": "all"}}], ["a", "b"]),
        ([{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}], [None, "b"]),
        ([{"type": "clear_thinking_20251015"}], [None, "b"]),
        ([], ["a", "b"]),
    ],
)
def test_earlier_thinking_is_cleared_as_asked(edits: list[Any], thinking: list[str | None]) -> None:
    turns: list[Any] = []
    for thought in ("a", "b"):
        block = {"type": "thinking", "thinking": thought, "signature": "s"}
        turns += [USER, {"role": "assistant", "content": [block, {"type": "text", "text": "x"}]}]
    messages = chat(messages=[*turns, USER], context_management={"edits": edits}).messages
    assert [message.get("reasoning") for message in messages if message["role"] == "assistant"] == thinking


def test_other_edits_of_the_context_are_refused() -> None:
    error = refused(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})
    assert (error.kind, error.param) == (ErrorKind.UNSUPPORTED, "context_management.edits[0].type")


def test_a_system_message_may_hold_for_one_turn() -> None:
    hint = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    assert chat(messages=[USER, hint]).messages == [USER, {"role": "system", "content": "Be brief."}]
    assert chat(messages=[hint, USER]).messages == [USER]


def test_a_tool_s_examples_and_callers() -> None:
    (tool,) = chat(tools=[ADD | {"input_examples": [{"a": 1}], "allowed_callers": ["direct"]}]).tools
    assert tool.parameters == {"type": "object", "examples": [{"a": 1}]}
    error = refused(tools=[ADD | {"allowed_callers": ["code_execution_20260521"]}])
    assert error.param == "tools[0].allowed_callers"


def test_the_older_name_of_the_output_s_format() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert chat(output_format=form).options.structure == chat(output_config={"format": form}).options.structure
