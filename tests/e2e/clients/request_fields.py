"""Prints the fields of the installed SDKs' request types, and the values that the types list for them.

The program needs only the SDKs, so it runs in any environment. The output is by request and by object in the request.
It has no objects that a server refuses by their `type` (images, tools that a provider runs itself), because the server
also refuses new kinds of them.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

# The types with the fields of each request or object. For a method, the fields are its parameters.
REQUESTS = {
    "openai.chat": ("openai.types.chat.completion_create_params:CompletionCreateParamsStreaming",),
    "openai.chat.stream_options": (
        "openai.types.chat.chat_completion_stream_options_param:ChatCompletionStreamOptionsParam",
    ),
    "openai.chat.message": ("openai.types.chat.chat_completion_message_param:ChatCompletionMessageParam",),
    "openai.chat.message.text": (
        "openai.types.chat.chat_completion_content_part_text_param:ChatCompletionContentPartTextParam",
    ),
    "openai.chat.message.refusal": (
        "openai.types.chat.chat_completion_content_part_refusal_param:ChatCompletionContentPartRefusalParam",
    ),
    "openai.chat.message.function_call": ("openai.types.chat.chat_completion_assistant_message_param:FunctionCall",),
    "openai.chat.tool_call": (
        "openai.types.chat.chat_completion_message_function_tool_call_param:ChatCompletionMessageFunctionToolCallParam",
    ),
    "openai.chat.tool_call.function": ("openai.types.chat.chat_completion_message_function_tool_call_param:Function",),
    "openai.chat.tool": ("openai.types.chat.chat_completion_function_tool_param:ChatCompletionFunctionToolParam",),
    "openai.chat.function": ("openai.types.shared_params.function_definition:FunctionDefinition",),
    "openai.chat.tool_choice": (
        "openai.types.chat.chat_completion_named_tool_choice_param:ChatCompletionNamedToolChoiceParam",
    ),
    "openai.chat.tool_choice.function": ("openai.types.chat.chat_completion_named_tool_choice_param:Function",),
    "openai.chat.allowed_tool_choice": (
        "openai.types.chat.chat_completion_allowed_tool_choice_param:ChatCompletionAllowedToolChoiceParam",
    ),
    "openai.chat.allowed_tools": (
        "openai.types.chat.chat_completion_allowed_tools_param:ChatCompletionAllowedToolsParam",
    ),
    "openai.chat.functions": ("openai.types.chat.completion_create_params:Function",),
    "openai.chat.function_call": (
        "openai.types.chat.chat_completion_function_call_option_param:ChatCompletionFunctionCallOptionParam",
    ),
    "openai.chat.response_format": (
        "openai.types.shared_params.response_format_text:ResponseFormatText",
        "openai.types.shared_params.response_format_json_object:ResponseFormatJSONObject",
        "openai.types.shared_params.response_format_json_schema:ResponseFormatJSONSchema",
    ),
    "openai.chat.response_format.json_schema": ("openai.types.shared_params.response_format_json_schema:JSONSchema",),
    "openai.completions.stream_options": (
        "openai.types.chat.chat_completion_stream_options_param:ChatCompletionStreamOptionsParam",
    ),
    "openai.completions": ("openai.types.completion_create_params:CompletionCreateParamsStreaming",),
    "openai.embeddings": ("openai.types.embedding_create_params:EmbeddingCreateParams",),
    "openai.responses": ("openai.types.responses.response_create_params:ResponseCreateParamsStreaming",),
    "openai.responses.input_tokens": ("openai.types.responses.input_token_count_params:InputTokenCountParams",),
    "openai.responses.reasoning": ("openai.types.shared_params.reasoning:Reasoning",),
    "openai.responses.text": (
        "openai.types.responses.response_text_config_param:ResponseTextConfigParam",
        "openai.types.responses.input_token_count_params:Text",
    ),
    "openai.responses.text.format": (
        "openai.types.shared_params.response_format_text:ResponseFormatText",
        "openai.types.shared_params.response_format_json_object:ResponseFormatJSONObject",
        "openai.types.responses.response_format_text_json_schema_config_param:ResponseFormatTextJSONSchemaConfigParam",
    ),
    "openai.responses.tool": ("openai.types.responses.function_tool_param:FunctionToolParam",),
    "openai.responses.tool_choice": ("openai.types.responses.tool_choice_function_param:ToolChoiceFunctionParam",),
    "openai.responses.allowed_tools": ("openai.types.responses.tool_choice_allowed_param:ToolChoiceAllowedParam",),
    "openai.responses.message.text": (
        "openai.types.responses.response_input_text_param:ResponseInputTextParam",
        "openai.types.responses.response_output_text_param:ResponseOutputTextParam",
    ),
    "openai.responses.message.refusal": (
        "openai.types.responses.response_output_refusal_param:ResponseOutputRefusalParam",
    ),
    "openai.responses.message": (
        "openai.types.responses.easy_input_message_param:EasyInputMessageParam",
        "openai.types.responses.response_input_item_param:Message",
        "openai.types.responses.response_output_message_param:ResponseOutputMessageParam",
    ),
    "openai.responses.function_call": (
        "openai.types.responses.response_function_tool_call_param:ResponseFunctionToolCallParam",
    ),
    "openai.responses.function_call_output": ("openai.types.responses.response_input_item_param:FunctionCallOutput",),
    "openai.responses.function_call_output.text": (
        "openai.types.responses.response_input_text_content_param:ResponseInputTextContentParam",
    ),
    "openai.responses.reasoning_item.content": ("openai.types.responses.response_reasoning_item_param:Content",),
    "openai.responses.reasoning_item.summary": ("openai.types.responses.response_reasoning_item_param:Summary",),
    "openai.responses.reasoning_item": (
        "openai.types.responses.response_reasoning_item_param:ResponseReasoningItemParam",
    ),
    "anthropic.messages": (
        "anthropic.types.message_create_params:MessageCreateParamsStreaming",
        "anthropic.types.beta.message_create_params:MessageCreateParamsStreaming",
    ),
    "anthropic.count_tokens": (
        "anthropic.types.message_count_tokens_params:MessageCountTokensParams",
        "anthropic.types.beta.message_count_tokens_params:MessageCountTokensParams",
    ),
    "anthropic.message": (
        "anthropic.types.message_param:MessageParam",
        "anthropic.types.beta.beta_message_param:BetaMessageParam",
    ),
    "anthropic.text": ("anthropic.types.beta.beta_text_block_param:BetaTextBlockParam",),
    "anthropic.system.text": ("anthropic.types.beta.beta_text_block_param:BetaTextBlockParam",),
    "anthropic.tool_result.text": ("anthropic.types.beta.beta_text_block_param:BetaTextBlockParam",),
    "anthropic.redacted_thinking": (
        "anthropic.types.beta.beta_redacted_thinking_block_param:BetaRedactedThinkingBlockParam",
    ),
    "anthropic.thinking_block": ("anthropic.types.beta.beta_thinking_block_param:BetaThinkingBlockParam",),
    "anthropic.tool_use": ("anthropic.types.beta.beta_tool_use_block_param:BetaToolUseBlockParam",),
    "anthropic.tool_result": ("anthropic.types.beta.beta_tool_result_block_param:BetaToolResultBlockParam",),
    "anthropic.tool": ("anthropic.types.beta.beta_tool_param:BetaToolParam",),
    "anthropic.tool_choice": ("anthropic.types.beta.beta_tool_choice_param:BetaToolChoiceParam",),
    "anthropic.thinking": ("anthropic.types.beta.beta_thinking_config_param:BetaThinkingConfigParam",),
    "anthropic.output_config": ("anthropic.types.beta.beta_output_config_param:BetaOutputConfigParam",),
    "anthropic.output_format": ("anthropic.types.beta.beta_json_output_format_param:BetaJSONOutputFormatParam",),
    "anthropic.context_management": (
        "anthropic.types.beta.beta_context_management_config_param:BetaContextManagementConfigParam",
    ),
    "anthropic.clear_thinking": (
        "anthropic.types.beta.beta_clear_thinking_20251015_edit_param:BetaClearThinking20251015EditParam",
    ),
    "anthropic.clear_thinking.keep": (
        "anthropic.types.beta.beta_thinking_turns_param:BetaThinkingTurnsParam",
        "anthropic.types.beta.beta_all_thinking_turns_param:BetaAllThinkingTurnsParam",
    ),
    "ollama.chat": ("ollama._types:ChatRequest",),
    "ollama.generate": ("ollama._types:GenerateRequest",),
    "ollama.embed": ("ollama._types:EmbedRequest",),
    "ollama.options": ("ollama._types:Options",),
    "ollama.message": ("ollama._types:Message",),
    "ollama.tool_call": ("ollama._types:Message.ToolCall",),
    "ollama.tool_call.function": ("ollama._types:Message.ToolCall.Function",),
    "ollama.tool": ("ollama._types:Tool",),
    "ollama.function": ("ollama._types:Tool.Function",),
    "cohere.embed": ("cohere.v2.client:V2Client.embed",),
    "cohere.embed.input": ("cohere.types.embed_input:EmbedInput",),
    "cohere.embed.text": ("cohere.types.embed_content:TextEmbedContent",),
    "cohere.rerank": ("cohere.v2.client:V2Client.rerank",),
}


# The fields of an object, each with the values that its type lists. No values: the type lists none.
Values = dict[str, list[Any]]


def _fields(place: str) -> Values:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if inspect.isfunction(found):
        hints = get_type_hints(found)
        return {
            name: _listed(hints[name])
            for name in inspect.signature(found).parameters
            if name not in ("self", "request_options")
        }
    return _fields_of(found)


def _fields_of(kind: Any) -> Values:
    """Returns the fields of a pydantic model or a TypedDict, inherited ones included, or of all members of a union."""
    if members := get_args(kind):
        return _joined(map(_fields_of, members))
    hints = get_type_hints(kind, include_extras=True)
    return {name: _listed(hints[name]) for name in getattr(kind, "model_fields", hints)}


def _listed(kind: Any) -> list[Any]:
    """Returns the values of all `Literal` in a type, which can be optional or that of an array."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) for value in _listed(part)]


def _joined(objects: Iterable[Values]) -> Values:
    joined: Values = {}
    for fields in objects:
        for name, values in fields.items():
            own = joined.setdefault(name, [])
            own += [value for value in values if value not in own]
    return joined


def main() -> dict[str, Values]:
    found: dict[str, Values] = {}
    for name, places in REQUESTS.items():
        try:
            importlib.import_module(name.partition(".")[0])
        except ImportError:
            continue
        found[name] = _joined(map(_fields, places))
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
