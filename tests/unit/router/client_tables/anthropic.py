"""Fields of Anthropic's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.router.apis.anthropic.blocks import OtherBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from services.router.apis.anthropic.body import (
    AnthropicTool,
    AnthropicToolChoice,
    CountTokensBody,
    JsonFormat,
    MessagesBody,
    OutputConfig,
    Thinking,
)
from services.router.apis.anthropic.context_management import ContextEdit, ContextManagement, KeptThinking
from services.router.apis.anthropic.messages import Turn
from tests.unit.router.client_tables.fields import CACHE, CITED, END_USER, ITEM, LOADING, TIER, USER, Fields

_MESSAGE = {"model": "m", "max_tokens": 8, "messages": [USER]}
_TOOL_USE = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
# A conversation with reasoning in two turns.
_THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi."}]}
THOUGHTS = _MESSAGE | {"messages": [USER, _THOUGHT, USER, _THOUGHT, USER]}
_TOOLSET = "It names a toolset of the provider's; those are refused where they are defined."


def _message(given: dict[str, Any]) -> dict[str, Any]:
    return _MESSAGE | given


def _block(role: str, block: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def inside(given: dict[str, Any]) -> dict[str, Any]:
        called = {"role": "assistant", "content": [_TOOL_USE, _TOOL_USE | {"id": "u"}]}
        return _MESSAGE | {"messages": [called, {"role": role, "content": [block | given]}]}

    return inside


TABLE: dict[str, Fields] = {
    "anthropic.messages": Fields(
        MessagesBody, MessagesBody, _message,
        "chat_template_kwargs context_management max_tokens messages model output_config stop_sequences stream system "
        "thinking tool_choice tools",
        ignored={
            "billing_policy": "Nobody is billed.",
            "cache_control": CACHE,
            "diagnostics": "It asks why the provider's cache missed.",
            "fallback_credit_token": "It lowers a bill.",
            "fallbacks": "They answer where a model declines by a policy of the provider's; this server has none.",
            "inference_geo": "It runs where this server runs.",
            "metadata": END_USER,
            "service_tier": TIER,
            "speed": TIER,
        },
        refused={
            "compaction": {"type": "enabled"}, "container": "c", "mcp_servers": [{"url": "u"}],
            "thread": {"type": "create"}, "kv_transfer_params": {"a": 1},
        },
        headers="betas user_profile_id workspace_id",
    ),
    "anthropic.count_tokens": Fields(
        CountTokensBody, CountTokensBody, lambda given: {"model": "m", "messages": [USER]} | given,
        "chat_template_kwargs context_management messages model output_config system thinking tool_choice tools",
        ignored={
            "billing_policy": "Nobody is billed.",
            "cache_control": CACHE,
            "compaction": "The count is that of the conversation as it is, as at Anthropic.",
            "speed": TIER,
        },
        refused={"mcp_servers": [{"url": "u"}]},
        headers="betas user_profile_id workspace_id",
    ),
    "anthropic.message": Fields(
        Turn, MessagesBody, lambda given: _MESSAGE | {"messages": [{"role": "system", "content": "x"} | given, USER]},
        "clear_at content role", refused={"output_config": {"effort": "low"}},
    ),
    "anthropic.text": Fields(
        TextBlock, MessagesBody, _block("user", {"type": "text", "text": "x"}), "text type",
        ignored={"cache_control": CACHE, "citations": CITED},
    ),
    "anthropic.system.text": Fields(
        TextBlock, MessagesBody, lambda given: _MESSAGE | {"system": [{"type": "text", "text": "x"} | given]},
        "text type", ignored={"cache_control": CACHE, "citations": CITED},
    ),
    "anthropic.tool_result.text": Fields(
        TextBlock, MessagesBody,
        lambda given: _block("user", {"type": "tool_result", "tool_use_id": "t"})(
            {"content": [{"type": "text", "text": "x"} | given]}
        ),
        "text type", ignored={"cache_control": CACHE, "citations": CITED},
    ),
    "anthropic.redacted_thinking": Fields(
        OtherBlock, MessagesBody, _block("assistant", {"type": "redacted_thinking"}), "type",
        ignored={"data": "Only Anthropic can decrypt it."},
    ),
    "anthropic.thinking_block": Fields(
        ThinkingBlock, MessagesBody, _block("assistant", {"type": "thinking", "thinking": "x"}), "thinking type",
        ignored={"signature": "Nothing is checked by it."},
    ),
    "anthropic.tool_use": Fields(
        ToolUseBlock, MessagesBody, _block("assistant", _TOOL_USE), "id input name type",
        ignored={"cache_control": CACHE, "caller": ITEM, "toolset_name": _TOOLSET},
    ),
    "anthropic.tool_result": Fields(
        ToolResultBlock, MessagesBody, _block("user", {"type": "tool_result", "tool_use_id": "t"}),
        "content is_error tool_use_id type", ignored={"cache_control": CACHE, "toolset_name": _TOOLSET},
    ),
    "anthropic.tool": Fields(
        AnthropicTool, MessagesBody, lambda given: _MESSAGE | {"tools": [{"name": "add", "input_schema": {}} | given]},
        "description input_examples input_schema name strict type",
        ignored={
            "cache_control": CACHE, "defer_loading": LOADING,
            "eager_input_streaming": "Inputs are always streamed as they come.",
        },
        refused={"allowed_callers": ["code_execution_20250825"]},
    ),
    "anthropic.tool_choice": Fields(
        AnthropicToolChoice, MessagesBody,
        lambda given: _MESSAGE | {
            "tools": [{"name": "add", "input_schema": {}}, {"name": "sub", "input_schema": {}}],
            "tool_choice": {"type": "auto"} | given,
        },
        "disable_parallel_tool_use name type",
    ),
    "anthropic.thinking": Fields(
        Thinking, MessagesBody, lambda given: _MESSAGE | {"thinking": {"type": "adaptive"} | given},
        "budget_tokens display type", ignored={"block_binding": "Thinking blocks are not checked."},
        # When to reason is up to the model.
        alike={"type": frozenset({"enabled", "adaptive", "between_tools"})},
    ),
    "anthropic.output_config": Fields(
        OutputConfig, MessagesBody, lambda given: _MESSAGE | {"output_config": given}, "effort format",
        refused={"task_budget": {"type": "tokens", "total": 8}},
    ),
    "anthropic.output_format": Fields(
        JsonFormat, MessagesBody,
        lambda given: _MESSAGE | {"output_config": {"format": {"type": "json_schema", "schema": {}} | given}},
        "schema type",
    ),
    "anthropic.context_management": Fields(
        ContextManagement, MessagesBody, lambda given: THOUGHTS | {"context_management": given}, "edits"
    ),
    "anthropic.clear_thinking": Fields(
        ContextEdit, MessagesBody,
        lambda given: THOUGHTS | {"context_management": {"edits": [{"type": "clear_thinking_20251015"} | given]}},
        "keep type",
    ),
    "anthropic.clear_thinking.keep": Fields(
        KeptThinking, MessagesBody,
        lambda given: THOUGHTS | {
            "context_management": {
                "edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"} | given}]
            }
        },
        "type value",
    ),
}  # fmt: skip
