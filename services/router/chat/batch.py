"""Answers the conversations of one request at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from services.router.calls import Caller, caller_of
from services.router.chat.message import Message, MessageParser
from services.router.chat.preparation import prepare
from services.router.chat.request import ChatRequest
from services.router.chat.service import ChatService, MessageReader
from services.router.constraints import TokenConstraints
from services.router.errors import ApiError
from services.router.generation import GenerationRequest, Usage
from services.router.model import ServedModel
from services.router.options import GenerationOptions

# Conversations of one request that are prepared at a time.
MAX_PREPARING = 8


async def answer_all(
    chats: ChatService, requests: Sequence[ChatRequest], model: ServedModel, context: Any
) -> tuple[list[Message], Usage]:
    """A message for each conversation, and the usage of all of them. If a conversation fails, the others are ended and
    its ApiError is raised."""
    caller = caller_of(context)
    preparation = _Preparation(chats, model, caller, len(requests))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_answer(chats, request, model, preparation)) for request in requests]
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


class _Preparation:
    """Prepares the conversations of one request, a few at a time: many do not fill the queues that all requests share,
    and the event loop serves others in between."""

    def __init__(self, chats: ChatService, model: ServedModel, caller: Caller, num_conversations: int) -> None:
        self.caller = caller
        self._num_conversations = num_conversations
        self._chats = chats
        self._model = model
        self._window = asyncio.Semaphore(MAX_PREPARING)
        self._resolving = asyncio.Lock()
        # Options differ by how a prompt leaves the model's reasoning, and by nothing else.
        self._resolved: list[tuple[GenerationOptions, TokenConstraints | None]] = []

    async def of(self, request: ChatRequest, traceparent: str) -> tuple[GenerationRequest, list[MessageParser]]:
        """Raises ApiError."""
        async with self._window:
            # Short conversations are prepared without waiting for anything.
            await asyncio.sleep(0)
            forms = self._chats.forms
            return await prepare(request, self._model, self.caller, traceparent, forms, self._constraints)

    async def _constraints(self, options: GenerationOptions, model: ServedModel) -> TokenConstraints | None:
        """Resolves equal options once: a schema or a thousand words are many times the work of a conversation."""
        async with self._resolving:
            for known, constraints in self._resolved:
                if known == options:
                    return constraints
            constraints = await options.constraints(model, self._num_conversations)
            self._resolved.append((options, constraints))
            return constraints


async def _answer(
    chats: ChatService, request: ChatRequest, model: ServedModel, preparation: _Preparation
) -> tuple[Message, Usage]:
    with chats.tracing.request("chat", model.info.name, preparation.caller.traceparent) as span:
        generation_request, parsers = await preparation.of(request, span.traceparent)
        reader = MessageReader(parsers, generation_request.prompts[0])
        usage = await chats.answers.gather(generation_request, span, reader.add)
        (message,) = reader.messages
        return message, reader.usage(usage)


def _first(failures: BaseExceptionGroup[ApiError]) -> ApiError:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
