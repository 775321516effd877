"""Answers several conversations of one request, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from services.router.calls import Caller, caller_of
from services.router.chat.message import Message
from services.router.chat.preparation import prepare
from services.router.chat.request import ChatRequest
from services.router.chat.service import ChatService, MessageReader
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.model import ServedModel


async def answer_all(
    chats: ChatService, requests: Sequence[ChatRequest], model: ServedModel, context: Any
) -> tuple[list[Message], Usage]:
    """A message for each conversation, and what all took together. Raises ApiError where one fails; the others end
    then."""
    caller = caller_of(context)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_answer(chats, request, model, caller)) for request in requests]
    except* ApiError as failures:
        # The first conversation's, if several fail.
        raise _first(failures) from None
    results = [task.result() for task in tasks]
    usages = [usage for _, usage in results]
    usage = Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        seconds_to_first_token=min(usage.seconds_to_first_token for usage in usages),
    )
    return [message for message, _ in results], usage


async def _answer(
    chats: ChatService, request: ChatRequest, model: ServedModel, caller: Caller
) -> tuple[Message, Usage]:
    with chats.tracing.request("chat", model.info.name, caller.traceparent) as span:
        generation_request, parsers = await prepare(request, model, caller, span.traceparent, chats.forms)
        reader = MessageReader(parsers, generation_request.prompts[0])
        usage = await chats.answers.gather(generation_request, span, reader.add)
        (message,) = reader.messages
        return message, reader.usage(usage)


def _first(failures: BaseExceptionGroup[ApiError]) -> ApiError:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
