"""Fields of OpenAI's chat completions, completions and embeddings."""

from __future__ import annotations

from typing import Any

from services.router.apis.openai.body import StreamOptions
from services.router.apis.openai.chat_completions import ChatCompletionRequest, ChatMessage, RefusalPart, TextPart
from services.router.apis.openai.completions import CompletionRequest
from services.router.apis.openai.embeddings import EmbeddingBody
from services.router.apis.openai.functions import FunctionName
from services.router.apis.openai.response_format import JsonSchemaFormat, ResponseFormat
from services.router.apis.openai.tools import (
    AllowedTools,
    AllowedToolsChoice,
    FunctionCall,
    FunctionDefinition,
    NamedFunction,
    NamedTool,
    ToolCall,
    ToolDefinition,
)
from tests.unit.router.client_tables.fields import (
    CACHE,
    END_USER,
    FUNCTION,
    MATCHES,
    NAME,
    STORE,
    STYLE,
    SUB,
    TIER,
    USER,
    Fields,
)

_CHAT = {"messages": [USER]}
_TOOL = {"type": "function", "function": FUNCTION}
_NAMED = {"type": "function", "function": {"name": "add"}}
_CALLED = {"name": "add", "arguments": "{}"}


def _chat(given: dict[str, Any]) -> dict[str, Any]:
    return _CHAT | given


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """A conversation in which the assistant has answered with this message."""
    return {"messages": [USER, {"role": "assistant"} | message, USER]}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    return _CHAT | {"tools": [_TOOL, {"type": "function", "function": SUB}], "tool_choice": choice}


TABLE: dict[str, Fields] = {
    "openai.chat": Fields(
        ChatCompletionRequest, ChatCompletionRequest, _chat,
        "frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages model n parallel_tool_calls "
        "presence_penalty prompt_cache_key reasoning_effort response_format seed stop stream stream_options "
        "temperature tool_choice tools top_logprobs top_p function_call functions",
        ignored={
            "metadata": STORE,
            "safety_identifier": END_USER,
            "service_tier": TIER,
            "store": STORE,
            "user": END_USER,
            "prediction": "A hint that may speed the answer up, and cannot change it.",
            "prompt_cache_options": CACHE,
            "prompt_cache_retention": CACHE,
            "verbosity": STYLE,
        },
        refused={
            "audio": {"voice": "v", "format": "wav"}, "modalities": ["text", "audio"], "moderation": {"model": "m"},
            "web_search_options": {},
        },
    ),
    "openai.chat.stream_options": Fields(
        StreamOptions, ChatCompletionRequest, lambda given: _CHAT | {"stream": True, "stream_options": given},
        "include_usage",
        ignored={"include_obfuscation": "Padding against those who measure packets; the text is the same."},
    ),
    "openai.chat.message": Fields(
        ChatMessage, ChatCompletionRequest, lambda given: {"messages": [{"role": "assistant", "content": "x"} | given]},
        "content function_call name refusal role tool_call_id tool_calls",
        refused={"audio": {"id": "a"}},
        # The message above has this role already.
        alike={"role": frozenset({"assistant"})},
    ),
    "openai.chat.message.text": Fields(
        TextPart, ChatCompletionRequest,
        lambda given: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"} | given]}]},
        "text type", ignored={"prompt_cache_breakpoint": CACHE},
    ),
    "openai.chat.message.refusal": Fields(
        RefusalPart, ChatCompletionRequest,
        lambda given: _answer({"content": [{"type": "refusal", "refusal": "x"} | given]}), "refusal type",
    ),
    "openai.chat.message.function_call": Fields(
        FunctionCall, ChatCompletionRequest, lambda given: _answer({"function_call": _CALLED | given}),
        "arguments name",
    ),
    "openai.chat.tool_call": Fields(
        ToolCall, ChatCompletionRequest,
        lambda given: _answer({"tool_calls": [{"id": "c", "type": "function", "function": _CALLED} | given]}),
        "function id type",
    ),
    "openai.chat.tool_call.function": Fields(
        FunctionCall, ChatCompletionRequest,
        lambda given: _answer({"tool_calls": [{"id": "c", "type": "function", "function": _CALLED | given}]}),
        "arguments name",
    ),
    "openai.chat.tool_choice": Fields(
        NamedTool, ChatCompletionRequest, lambda given: _choice(_NAMED | given), "function type"
    ),
    "openai.chat.tool_choice.function": Fields(
        NamedFunction, ChatCompletionRequest,
        lambda given: _choice({"type": "function", "function": {"name": "add"} | given}), "name",
    ),
    "openai.chat.allowed_tool_choice": Fields(
        AllowedToolsChoice, ChatCompletionRequest,
        lambda given: _choice({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_NAMED]}} | given),
        "allowed_tools type",
    ),
    "openai.chat.allowed_tools": Fields(
        AllowedTools, ChatCompletionRequest,
        lambda given: _choice({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_NAMED]} | given}),
        "mode tools",
    ),
    "openai.chat.functions": Fields(
        FunctionDefinition, ChatCompletionRequest, lambda given: _CHAT | {"functions": [FUNCTION | given]},
        "description name parameters",
    ),
    "openai.chat.function_call": Fields(
        FunctionName, ChatCompletionRequest,
        lambda given: _CHAT | {"functions": [FUNCTION, SUB], "function_call": {"name": "add"} | given}, "name",
    ),
    "openai.chat.response_format": Fields(
        ResponseFormat, ChatCompletionRequest,
        lambda given: _CHAT | {"response_format": {"type": "text"} | given}, "json_schema type",
    ),
    "openai.chat.response_format.json_schema": Fields(
        JsonSchemaFormat, ChatCompletionRequest,
        lambda given: _CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "n"} | given}},
        "schema", ignored={"description": MATCHES, "name": NAME, "strict": MATCHES},
    ),
    "openai.chat.tool": Fields(
        ToolDefinition, ChatCompletionRequest,
        lambda given: _CHAT | {"tools": [{"type": "function", "function": FUNCTION} | given]}, "function type",
    ),
    "openai.chat.function": Fields(
        FunctionDefinition, ChatCompletionRequest,
        lambda given: _CHAT | {"tools": [{"type": "function", "function": FUNCTION | given}]},
        "description name parameters strict",
    ),
    "openai.completions": Fields(
        CompletionRequest, CompletionRequest, lambda given: {"prompt": "x"} | given,
        "best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop "
        "stream stream_options temperature top_p",
        ignored={"user": END_USER}, refused={"suffix": "x"},
    ),
    "openai.completions.stream_options": Fields(
        StreamOptions, CompletionRequest, lambda given: {"prompt": "x", "stream": True, "stream_options": given},
        "include_usage",
        ignored={"include_obfuscation": "Padding against those who measure packets; the text is the same."},
    ),
    "openai.embeddings": Fields(
        EmbeddingBody, EmbeddingBody, lambda given: {"input": "x"} | given, "dimensions encoding_format input model",
        ignored={"user": END_USER},
    ),
}  # fmt: skip
