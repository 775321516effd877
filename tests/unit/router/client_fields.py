"""What becomes of every field that the newest SDKs can send: served, refused, or ignored for a reason.

tests/e2e/clients/request_fields.py lists the fields of the SDKs that are installed. A field that is not here fails
test_client_fields.py: a field that changes the meaning of a request must never be dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from services.router.apis.ollama.chat import (
    CalledFunction,
    CallParam,
    ChatBody,
    FunctionParam,
    OllamaMessage,
    OllamaTool,
)
from services.router.apis.ollama.embed import EmbedBody
from services.router.apis.ollama.generate import GenerateBody
from services.router.apis.ollama.options import Options
from services.router.apis.openai.body import StreamOptions
from services.router.apis.openai.chat_completions import ChatCompletionRequest, ChatMessage, RefusalPart, TextPart
from services.router.apis.openai.cohere import CohereEmbedBody, CohereInput, CohereText
from services.router.apis.openai.completions import CompletionRequest
from services.router.apis.openai.embeddings import EmbeddingBody
from services.router.apis.openai.functions import FunctionName
from services.router.apis.openai.response_format import JsonSchemaFormat, ResponseFormat
from services.router.apis.openai.scoring import RerankBody
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
from services.router.apis.responses.body import Format, InputTokensBody, Reasoning, ResponseBody, Text
from services.router.apis.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    MessageItem,
    Part,
    ReasoningItem,
)
from services.router.apis.responses.tools import ResponseTool, ResponseToolChoice
from services.router.http.body import Body


@dataclass(frozen=True)
class Fields:
    """Of one object. `inside`: makes the request that has it of the object's fields."""

    object: type[Body]
    request: type[Body]
    inside: Callable[[dict[str, Any]], dict[str, Any]]
    # Fields that change the converted request or the answer. client_samples.py has a value of each.
    served: str
    # By name: why the answer is right without it.
    ignored: Mapping[str, str] = field(default_factory=dict)
    # By name: a value that asks for something.
    refused: Mapping[str, Any] = field(default_factory=dict)
    # What SDKs send as headers.
    headers: str = ""

    @property
    def names(self) -> set[str]:
        return {*self.served.split(), *self.ignored, *self.refused, *self.headers.split()}


USER = {"role": "user", "content": "Hi"}
_CHAT = {"messages": [USER]}
_RESPONSE = {"input": "Hi"}
_MESSAGE = {"model": "m", "max_tokens": 8, "messages": [USER]}
_FUNCTION = {"name": "add", "parameters": {"type": "object"}}
_TOOL = {"type": "function", "function": _FUNCTION}
_NAMED = {"type": "function", "function": {"name": "add"}}
_SUB: dict[str, Any] = {"name": "sub"}
_CALLED = {"name": "add", "arguments": "{}"}
_TOOL_USE = {"type": "tool_use", "id": "t", "name": "add", "input": {}}

# A conversation with reasoning in two turns.
_THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi."}]}
THOUGHTS = _MESSAGE | {"messages": [USER, _THOUGHT, USER, _THOUGHT, USER]}

_CACHE = "The cache keeps what it has room for, whatever the client marks."
_MATCHES = "Answers always match the schema."
_NAME = "The schema is used without its name."
_STYLE = "A hint of style that no open model's template takes."
_TIER = "There is one tier."
_TOOLSET = "It names a toolset of the provider's; those are refused where they are defined."
_STORE = "Nothing is stored."
_USER = "It identifies the end user to the provider."
_ITEM = "It repeats what an earlier answer said of the item."
_CITED = "It is of an earlier answer, whose text says the same."
_LOADING = "The model sees all tools at once."
_LOADED = "It says how Ollama loads a model; this server has loaded it."


def _chat(given: dict[str, Any]) -> dict[str, Any]:
    return _CHAT | given


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """A conversation in which the assistant has answered with this message."""
    return {"messages": [USER, {"role": "assistant"} | message, USER]}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    return _CHAT | {"tools": [_TOOL, {"type": "function", "function": _SUB}], "tool_choice": choice}


def _response(given: dict[str, Any]) -> dict[str, Any]:
    return _RESPONSE | given


def _message(given: dict[str, Any]) -> dict[str, Any]:
    return _MESSAGE | given


def _block(role: str, block: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def inside(given: dict[str, Any]) -> dict[str, Any]:
        called = {"role": "assistant", "content": [_TOOL_USE, _TOOL_USE | {"id": "u"}]}
        return _MESSAGE | {"messages": [called, {"role": role, "content": [block | given]}]}

    return inside


def _parts(item: dict[str, Any], name: str, part: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """`name`: the field of the item that has the part."""
    inside = _item(item)
    return lambda given: inside({name: [part | given]})


def _response_choice(choice: dict[str, Any]) -> dict[str, Any]:
    tools = [{"type": "function"} | function for function in (_FUNCTION, _SUB)]
    return _RESPONSE | {"tools": tools, "tool_choice": choice}


def _item(item: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    calls = [{"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}"} for call_id in "ce"]
    return lambda given: {"input": [*calls, item | given]}


def _ollama_call(call: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [USER, {"role": "assistant", "tool_calls": [call]}]}


TABLE: dict[str, Fields] = {
    "openai.chat": Fields(
        ChatCompletionRequest, ChatCompletionRequest, _chat,
        "frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages model n parallel_tool_calls "
        "presence_penalty prompt_cache_key reasoning_effort response_format seed stop stream stream_options "
        "temperature tool_choice tools top_logprobs top_p function_call functions",
        ignored={
            "metadata": _STORE,
            "safety_identifier": _USER,
            "service_tier": _TIER,
            "store": _STORE,
            "user": _USER,
            "prediction": "A hint that may speed the answer up, and cannot change it.",
            "prompt_cache_options": _CACHE,
            "prompt_cache_retention": _CACHE,
            "verbosity": _STYLE,
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
    ),
    "openai.chat.message.text": Fields(
        TextPart, ChatCompletionRequest,
        lambda given: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"} | given]}]},
        "text type", ignored={"prompt_cache_breakpoint": _CACHE},
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
        FunctionDefinition, ChatCompletionRequest, lambda given: _CHAT | {"functions": [_FUNCTION | given]},
        "description name parameters",
    ),
    "openai.chat.function_call": Fields(
        FunctionName, ChatCompletionRequest,
        lambda given: _CHAT | {"functions": [_FUNCTION, _SUB], "function_call": {"name": "add"} | given}, "name",
    ),
    "openai.chat.response_format": Fields(
        ResponseFormat, ChatCompletionRequest,
        lambda given: _CHAT | {"response_format": {"type": "text"} | given}, "json_schema type",
    ),
    "openai.chat.response_format.json_schema": Fields(
        JsonSchemaFormat, ChatCompletionRequest,
        lambda given: _CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "n"} | given}},
        "schema", ignored={"description": _MATCHES, "name": _NAME, "strict": _MATCHES},
    ),
    "openai.chat.tool": Fields(
        ToolDefinition, ChatCompletionRequest,
        lambda given: _CHAT | {"tools": [{"type": "function", "function": _FUNCTION} | given]}, "function type",
    ),
    "openai.chat.function": Fields(
        FunctionDefinition, ChatCompletionRequest,
        lambda given: _CHAT | {"tools": [{"type": "function", "function": _FUNCTION | given}]},
        "description name parameters strict",
    ),
    "openai.completions": Fields(
        CompletionRequest, CompletionRequest, lambda given: {"prompt": "x"} | given,
        "best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop "
        "stream stream_options temperature top_p",
        ignored={"user": _USER}, refused={"suffix": "x"},
    ),
    "openai.completions.stream_options": Fields(
        StreamOptions, CompletionRequest, lambda given: {"prompt": "x", "stream": True, "stream_options": given},
        "include_usage",
        ignored={"include_obfuscation": "Padding against those who measure packets; the text is the same."},
    ),
    "openai.embeddings": Fields(
        EmbeddingBody, EmbeddingBody, lambda given: {"input": "x"} | given, "dimensions encoding_format input model",
        ignored={"user": _USER},
    ),
    "openai.responses": Fields(
        ResponseBody, ResponseBody, _response,
        "include input instructions max_output_tokens metadata model parallel_tool_calls prompt_cache_key reasoning "
        "safety_identifier stream temperature text tool_choice tools top_logprobs top_p truncation user",
        ignored={
            "access_programs": "It chooses among OpenAI's own models.",
            "max_tool_calls": "It counts calls of tools that OpenAI runs itself, and those are refused.",
            "prompt_cache_options": _CACHE,
            "prompt_cache_retention": _CACHE,
            "service_tier": _TIER,
            "store": _STORE,
            "stream_options": "Padding against those who measure packets; the text is the same.",
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
        ignored={"verbosity": _STYLE},
    ),
    "openai.responses.text.format": Fields(
        Format, ResponseBody, lambda given: _RESPONSE | {"text": {"format": {"type": "text"} | given}},
        "schema type", ignored={"description": _MATCHES, "name": _NAME, "strict": _MATCHES},
    ),
    "openai.responses.tool": Fields(
        ResponseTool, ResponseBody, lambda given: _RESPONSE | {"tools": [{"type": "function"} | _FUNCTION | given]},
        "description name parameters strict type",
        ignored={"defer_loading": _LOADING, "output_schema": "It describes results to code that OpenAI runs."},
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
        "text type", ignored={"annotations": _CITED, "logprobs": _ITEM, "prompt_cache_breakpoint": _CACHE},
    ),
    "openai.responses.message.refusal": Fields(
        Part, ResponseBody, _parts({"role": "assistant"}, "content", {"type": "refusal", "refusal": "x"}),
        "refusal type",
    ),
    "openai.responses.function_call_output.text": Fields(
        Part, ResponseBody,
        _parts({"type": "function_call_output", "call_id": "c"}, "output", {"type": "input_text", "text": "x"}),
        "text type", ignored={"prompt_cache_breakpoint": _CACHE},
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
        ignored={"id": _ITEM, "phase": _ITEM, "status": _ITEM},
    ),
    "openai.responses.function_call": Fields(
        FunctionCallItem, ResponseBody,
        _item({"type": "function_call", "call_id": "d", "name": "add", "arguments": "{}"}),
        "arguments call_id name type",
        ignored=dict.fromkeys(("async", "caller", "id", "namespace", "status"), _ITEM),
    ),
    "openai.responses.function_call_output": Fields(
        FunctionCallOutputItem, ResponseBody, _item({"type": "function_call_output", "call_id": "c", "output": "5"}),
        "call_id output type", ignored=dict.fromkeys(("caller", "id", "name", "namespace", "status"), _ITEM),
    ),
    "openai.responses.reasoning_item": Fields(
        ReasoningItem, ResponseBody, _item({"type": "reasoning", "summary": []}), "content summary type",
        ignored={
            "id": _ITEM, "status": _ITEM,
            "encrypted_content": "Nobody but its maker can read it; `content` and `summary` are read.",
        },
    ),
    "anthropic.messages": Fields(
        MessagesBody, MessagesBody, _message,
        "context_management max_tokens messages model output_config stop_sequences stream system thinking tool_choice "
        "tools",
        ignored={
            "billing_policy": "Nobody is billed.",
            "cache_control": _CACHE,
            "diagnostics": "It asks why the provider's cache missed.",
            "fallback_credit_token": "It lowers a bill.",
            "fallbacks": "They answer where a model declines by a policy of the provider's; this server has none.",
            "inference_geo": "It runs where this server runs.",
            "metadata": _USER,
            "service_tier": _TIER,
            "speed": _TIER,
        },
        refused={
            "compaction": {"type": "enabled"}, "container": "c", "mcp_servers": [{"url": "u"}],
            "thread": {"type": "create"},
        },
        headers="betas user_profile_id workspace_id",
    ),
    "anthropic.count_tokens": Fields(
        CountTokensBody, CountTokensBody, lambda given: {"model": "m", "messages": [USER]} | given,
        "context_management messages model output_config system thinking tool_choice tools",
        ignored={
            "billing_policy": "Nobody is billed.",
            "cache_control": _CACHE,
            "compaction": "The count is that of the conversation as it is, as at Anthropic.",
            "speed": _TIER,
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
        ignored={"cache_control": _CACHE, "citations": _CITED},
    ),
    "anthropic.system.text": Fields(
        TextBlock, MessagesBody, lambda given: _MESSAGE | {"system": [{"type": "text", "text": "x"} | given]},
        "text type", ignored={"cache_control": _CACHE, "citations": _CITED},
    ),
    "anthropic.tool_result.text": Fields(
        TextBlock, MessagesBody,
        lambda given: _block("user", {"type": "tool_result", "tool_use_id": "t"})(
            {"content": [{"type": "text", "text": "x"} | given]}
        ),
        "text type", ignored={"cache_control": _CACHE, "citations": _CITED},
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
        ignored={"cache_control": _CACHE, "caller": _ITEM, "toolset_name": _TOOLSET},
    ),
    "anthropic.tool_result": Fields(
        ToolResultBlock, MessagesBody, _block("user", {"type": "tool_result", "tool_use_id": "t"}),
        "content is_error tool_use_id type", ignored={"cache_control": _CACHE, "toolset_name": _TOOLSET},
    ),
    "anthropic.tool": Fields(
        AnthropicTool, MessagesBody, lambda given: _MESSAGE | {"tools": [{"name": "add", "input_schema": {}} | given]},
        "description input_examples input_schema name strict type",
        ignored={
            "cache_control": _CACHE, "defer_loading": _LOADING,
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
    "ollama.chat": Fields(
        ChatBody, ChatBody, lambda given: {"model": "m", "messages": [USER]} | given,
        "format logprobs messages model options stream think tools top_logprobs", ignored={"keep_alive": _LOADED},
    ),
    "ollama.generate": Fields(
        GenerateBody, GenerateBody, lambda given: {"model": "m", "prompt": "x"} | given,
        "format logprobs model options prompt raw stream system think top_logprobs",
        ignored={"keep_alive": _LOADED},
        refused={
            "context": [1], "images": ["x"], "suffix": "x", "template": "x", "height": 8, "steps": 8, "width": 8,
        },
    ),
    "ollama.embed": Fields(
        EmbedBody, EmbedBody, lambda given: {"model": "m", "input": "x"} | given,
        "dimensions input model truncate", ignored={"keep_alive": _LOADED, "options": _LOADED},
    ),
    "ollama.options": Fields(
        Options, ChatBody, lambda given: {"model": "m", "messages": [USER], "options": given},
        "frequency_penalty num_predict presence_penalty repeat_last_n repeat_penalty seed stop temperature top_k top_p",
        ignored={
            **dict.fromkeys(
                ("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu",
                 "num_thread", "numa", "use_mlock", "use_mmap", "vocab_only"), _LOADED,
            ),
            "mirostat_eta": "It has no effect without `mirostat`.",
            "mirostat_tau": "It has no effect without `mirostat`.",
            "num_keep": "The context is never shifted.",
            "penalize_newline": "Ollama's own runner ignores it.",
        },
        refused={"mirostat": 1, "tfs_z": 0.5, "typical_p": 0.5},
    ),
    "ollama.message": Fields(
        OllamaMessage, ChatBody, lambda given: {"model": "m", "messages": [USER | given]},
        "content role thinking tool_calls tool_name", refused={"images": ["x"]},
    ),
    "ollama.tool_call": Fields(
        CallParam, ChatBody, lambda given: _ollama_call({"function": {"name": "add", "arguments": {}}} | given),
        "function",
    ),
    "ollama.tool_call.function": Fields(
        CalledFunction, ChatBody, lambda given: _ollama_call({"function": {"name": "add", "arguments": {}} | given}),
        "arguments name",
    ),
    "ollama.function": Fields(
        FunctionParam, ChatBody,
        lambda given: {"model": "m", "messages": [USER], "tools": [{"function": _FUNCTION | given}]},
        "description name parameters",
    ),
    "ollama.tool": Fields(
        OllamaTool, ChatBody,
        lambda given: {"model": "m", "messages": [USER], "tools": [{"function": _FUNCTION} | given]}, "function type",
    ),
    "cohere.embed": Fields(
        CohereEmbedBody, CohereEmbedBody, lambda given: {"texts": ["x"]} | given,
        "embedding_types input_type inputs max_tokens model output_dimension priority texts truncate",
        refused={"images": ["x"]},
    ),
    "cohere.embed.input": Fields(
        CohereInput, CohereEmbedBody,
        lambda given: {"inputs": [{"content": [{"type": "text", "text": "x"}]} | given]}, "content",
    ),
    "cohere.embed.text": Fields(
        CohereText, CohereEmbedBody, lambda given: {"inputs": [{"content": [{"type": "text", "text": "x"} | given]}]},
        "text type",
    ),
    "cohere.rerank": Fields(
        RerankBody, RerankBody, lambda given: {"query": "x", "documents": ["y"]} | given,
        "documents model priority query top_n", refused={"max_tokens_per_doc": 8, "relevant_spans": {}},
    ),
}  # fmt: skip
