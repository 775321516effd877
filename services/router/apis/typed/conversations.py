"""Conversion of quire.inference.v1's conversations to the router's own types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from quire.inference.v1 import inference_pb2
from services.router.apis.typed.converters import MAX_TOKENS_PARAM, options_from_proto
from services.router.apis.typed.tools import (
    TOOL_PATH,
    parameters_of,
    tool_calls_from_proto,
    tool_choice_from_proto,
    tools_from_proto,
)
from services.router.chat import ChatRequest, ReasoningEffort, Tool, check_tool_messages, effort_kwargs
from services.router.errors import invalid, too_many
from services.router.generation import GenerationOptions
from services.router.limits import check_json_texts
from services.router.model import ServedModel
from services.router.parameters import SamplingParams, StopConditions
from services.router.prompt import MAX_DOCUMENTS, MAX_MESSAGES

_EFFORTS = get_args(ReasoningEffort)
_TEMPLATE = "template."
_KWARGS = f"{_TEMPLATE}chat_template_kwargs"
_DOCUMENTS = f"{_TEMPLATE}documents"
# Cost of converting a message, as the number of characters that can be tokenized in the same time (the unit of
# TextThreads).
_MESSAGE_WORK = 8


async def chat_from_proto(request: inference_pb2.ChatRequest, model: ServedModel, max_n: int) -> ChatRequest:
    """Converts a chat request to the router's own type. Raises ApiError if a value is invalid."""
    options = options_from_proto(request.options, max_n)
    adds = request.options.HasField("add_special_tokens") and request.options.add_special_tokens
    return await _chat_of(request, model, options, adds_special_tokens=adds)


async def tokenized_chat_from_proto(request: inference_pb2.TokenizeRequest, model: ServedModel) -> ChatRequest:
    """Converts a TokenizeRequest with a chat to a chat request, whose prompt can then be tokenized. Raises ApiError if
    a value is invalid."""
    options = GenerationOptions(SamplingParams(), StopConditions())
    adds = request.HasField("add_special_tokens") and request.add_special_tokens
    return await _chat_of(request.chat, model, options, adds_special_tokens=adds)


async def _chat_of(
    chat: inference_pb2.ChatRequest | inference_pb2.ChatMessages,
    model: ServedModel,
    options: GenerationOptions,
    *,
    adds_special_tokens: bool,
) -> ChatRequest:
    given = chat.template
    if len(given.documents) > MAX_DOCUMENTS:
        raise too_many(_DOCUMENTS, MAX_DOCUMENTS, len(given.documents))
    texts = [(_KWARGS, given.chat_template_kwargs)]
    texts += [(f"{_DOCUMENTS}[{index}]", text) for index, text in enumerate(given.documents)]
    texts += parameters_of(chat.tools)
    size = sum(len(text) for _, text in texts) + _MESSAGE_WORK * len(chat.messages)

    def convert() -> tuple[_Template, list[dict[str, Any]], tuple[Tool, ...]]:
        check_json_texts(texts)
        return _template_from_proto(given), messages_from_proto(chat.messages), tools_from_proto(chat.tools)

    template, messages, tools = await model.tokenizer.threads.run(size, convert)
    return ChatRequest(
        model=model.info.name,
        messages=messages,
        options=options,
        tools=tools,
        tool_choice=tool_choice_from_proto(chat.tool_choice),
        tool_path=TOOL_PATH,
        max_tokens_param=MAX_TOKENS_PARAM,
        add_special_tokens=adds_special_tokens,
        add_generation_prompt=template.adds_generation_prompt,
        continue_final_message=given.continue_final_message,
        chat_template=given.chat_template or None,
        template_kwargs=template.kwargs,
        documents=template.documents,
    )


@dataclass(frozen=True, slots=True)
class _Template:
    adds_generation_prompt: bool
    kwargs: Mapping[str, Any] | None
    documents: Sequence[Mapping[str, Any]] | None


def _template_from_proto(given: inference_pb2.TemplateOptions) -> _Template:
    adds = given.add_generation_prompt if given.HasField("add_generation_prompt") else not given.continue_final_message
    if adds and given.continue_final_message:
        param = f"{_TEMPLATE}continue_final_message"
        raise invalid(f"'{param}' and '{_TEMPLATE}add_generation_prompt' exclude each other.", param)
    effort = given.reasoning_effort
    if effort and effort not in _EFFORTS:
        param = f"{_TEMPLATE}reasoning_effort"
        message = f"Invalid '{param}': {effort[:32]!r}. Supported values are: {', '.join(_EFFORTS)}."
        raise invalid(message, param, "invalid_value")
    kwargs = _json_object(given.chat_template_kwargs, _KWARGS) if given.chat_template_kwargs else None
    documents = [_json_object(text, f"{_DOCUMENTS}[{index}]") for index, text in enumerate(given.documents)]
    return _Template(adds, effort_kwargs(effort or None, kwargs), documents or None)


def _json_object(text: str, param: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(f"Invalid '{param}': expected a JSON object.", param, "invalid_value")
    return value


def messages_from_proto(messages: Sequence[inference_pb2.ChatMessage]) -> list[dict[str, Any]]:
    """Returns the messages as chat templates expect them. Raises ApiError if there are no messages or too many, if a
    message has no role, or if a tool message is invalid."""
    if not messages:
        raise invalid("Invalid 'messages': it must not be empty.", "messages", "empty_array")
    if len(messages) > MAX_MESSAGES:
        raise too_many("messages", MAX_MESSAGES, len(messages))
    for index, message in enumerate(messages):
        if not message.role:
            raise invalid(f"Missing required parameter: 'messages[{index}].role'.", f"messages[{index}].role")
    written = [_message_from_proto(message) for message in messages]
    check_tool_messages(written)
    return written


def _message_from_proto(message: inference_pb2.ChatMessage) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        written["name"] = message.name
    if message.tool_calls:
        written["tool_calls"] = tool_calls_from_proto(message.tool_calls)
    if message.tool_call_id:
        written["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        written["reasoning_content"] = written["reasoning"] = message.reasoning
    return written
