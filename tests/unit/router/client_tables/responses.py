"""Fields of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.router.apis.responses.body import Format, InputTokensBody, Reasoning, ResponseBody, Text
from services.router.apis.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    MessageItem,
    Part,
    ReasoningItem,
)
from services.router.apis.responses.tools import ResponseTool, ResponseToolChoice
from tests.unit.router.client_tables.fields import (
    CACHE,
    CITED,
    FUNCTION,
    ITEM,
    LOADING,
    MATCHES,
    NAME,
    STORE,
    STYLE,
    SUB,
    TIER,
    USER,
    Fields,
)

_RESPONSE = {"input": "Hi"}


def _response(given: dict[str, Any]) -> dict[str, Any]:
    return _RESPONSE | given


def _parts(item: dict[str, Any], name: str, part: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """`name`: the field of the item that has the part."""
    inside = _item(item)
    return lambda given: inside({name: [part | given]})


def _response_choice(choice: dict[str, Any]) -> dict[str, Any]:
    tools = [{"type": "function"} | function for function in (FUNCTION, SUB)]
    return _RESPONSE | {"tools": tools, "tool_choice": choice}


def _item(item: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    calls = [{"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}"} for call_id in "ce"]
    return lambda given: {"input": [*calls, item | given]}


TABLE: dict[str, Fields] = {
    "openai.responses": Fields(
        ResponseBody, ResponseBody, _response,
        "include input instructions max_output_tokens metadata model parallel_tool_calls prompt_cache_key reasoning "
        "safety_identifier stream temperature text tool_choice tools top_logprobs top_p truncation user",
        ignored={
            "access_programs": "It chooses among OpenAI's own models.",
            "max_tool_calls": "It counts calls of tools that OpenAI runs itself, and those are refused.",
            "prompt_cache_options": CACHE,
            "prompt_cache_retention": CACHE,
            "service_tier": TIER,
            "store": STORE,
            "stream_options": "Padding against those who measure packets; the text is the same.",
        },
        # Each adds something to items that this server refuses or never makes.
        alike={
            "include": frozenset({
                "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
                "message.input_image.image_url", "reasoning.encrypted_content", "web_search_call.action.sources",
                "web_search_call.results",
            })
        },
        refused={
            "background": True, "background_options": {"completion_window": "2h"},
            "context_management": [{"type": "compaction"}], "conversation": "c", "image": {},
            "moderation": {"model": "m"}, "previous_response_id": "r", "prompt": {"id": "p"},
        },
    ),
    "openai.responses.input_tokens": Fields(
        InputTokensBody, InputTokensBody, _response,
        "input instructions model parallel_tool_calls reasoning text tool_choice tools truncation",
        refused={"conversation": "c", "previous_response_id": "r", "personality": "friendly"},
    ),
    "openai.responses.reasoning": Fields(
        Reasoning, ResponseBody, lambda given: _RESPONSE | {"reasoning": given}, "effort",
        ignored=dict.fromkeys(("generate_summary", "summary"), "Reasoning is told as it is."),
        refused={"context": "current_turn", "mode": "pro"},
    ),
    "openai.responses.text": Fields(
        Text, ResponseBody, lambda given: _RESPONSE | {"text": given}, "format",
        ignored={"verbosity": STYLE},
    ),
    "openai.responses.text.format": Fields(
        Format, ResponseBody, lambda given: _RESPONSE | {"text": {"format": {"type": "text"} | given}},
        "schema type", ignored={"description": MATCHES, "name": NAME, "strict": MATCHES},
    ),
    "openai.responses.tool": Fields(
        ResponseTool, ResponseBody, lambda given: _RESPONSE | {"tools": [{"type": "function"} | FUNCTION | given]},
        "description name parameters strict type",
        ignored={"defer_loading": LOADING, "output_schema": "It describes results to code that OpenAI runs."},
        refused={"allowed_callers": ["programmatic"], "async": True},
    ),
    "openai.responses.tool_choice": Fields(
        ResponseToolChoice, ResponseBody,
        lambda given: _response_choice({"type": "function", "name": "add"} | given), "name type",
    ),
    "openai.responses.allowed_tools": Fields(
        ResponseToolChoice, ResponseBody,
        lambda given: _response_choice(
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]} | given
        ),
        "mode tools type",
    ),
    "openai.responses.message.text": Fields(
        Part, ResponseBody, _parts({"role": "assistant"}, "content", {"type": "output_text", "text": "x"}),
        "text type", ignored={"annotations": CITED, "logprobs": ITEM, "prompt_cache_breakpoint": CACHE},
        # The message's role says whose text it is.
        alike={"type": frozenset({"input_text", "output_text"})},
    ),
    "openai.responses.message.refusal": Fields(
        Part, ResponseBody, _parts({"role": "assistant"}, "content", {"type": "refusal", "refusal": "x"}),
        "refusal type",
    ),
    "openai.responses.function_call_output.text": Fields(
        Part, ResponseBody,
        _parts({"type": "function_call_output", "call_id": "c"}, "output", {"type": "input_text", "text": "x"}),
        "text type", ignored={"prompt_cache_breakpoint": CACHE},
    ),
    "openai.responses.reasoning_item.content": Fields(
        Part, ResponseBody,
        _parts({"type": "reasoning", "summary": []}, "content", {"type": "reasoning_text", "text": "x"}), "text type",
    ),
    "openai.responses.reasoning_item.summary": Fields(
        Part, ResponseBody, _parts({"type": "reasoning"}, "summary", {"type": "summary_text", "text": "x"}),
        "text type",
    ),
    "openai.responses.message": Fields(
        MessageItem, ResponseBody, _item(USER), "content role type",
        ignored={"id": ITEM, "phase": ITEM, "status": ITEM},
    ),
    "openai.responses.function_call": Fields(
        FunctionCallItem, ResponseBody,
        _item({"type": "function_call", "call_id": "d", "name": "add", "arguments": "{}"}),
        "arguments call_id name type",
        ignored=dict.fromkeys(("async", "caller", "id", "namespace", "status"), ITEM),
    ),
    "openai.responses.function_call_output": Fields(
        FunctionCallOutputItem, ResponseBody, _item({"type": "function_call_output", "call_id": "c", "output": "5"}),
        "call_id output type", ignored=dict.fromkeys(("caller", "id", "name", "namespace", "status"), ITEM),
    ),
    "openai.responses.reasoning_item": Fields(
        ReasoningItem, ResponseBody, _item({"type": "reasoning", "summary": []}), "content summary type",
        ignored={
            "id": ITEM, "status": ITEM,
            "encrypted_content": "Nobody but its maker can read it; `content` and `summary` are read.",
        },
    ),
}  # fmt: skip
