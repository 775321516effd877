"""Answers several conversations of one request concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.router.chat import ChatRequest, Message, MessageParser, prepare
from services.router.constraints import TokenConstraints
from services.router.dispatch import new_turn_id
from services.router.errors import ApiError
from services.router.generation import GenerationOptions, GenerationRequest, RequestSpan, Usage
from services.router.http.chats import ChatService, MessageReader
from services.router.model import ServedModel
from services.router.rpc import Caller, caller_of

# Maximum number of conversations of one request that are prepared at the same time.
MAX_PREPARING = 8


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation whose prompt is tokenized, so that its generation can start."""

    request: GenerationRequest
    parsers: list[MessageParser]
    span: RequestSpan


async def prepare_all(
    chats: ChatService, requests: Sequence[ChatRequest], model: ServedModel, context: Any
) -> list[PreparedChat]:
    """Returns all conversations, prepared for generation. If a conversation fails, cancels the others and raises its
    ApiError."""
    preparation = _Preparation(chats, model, caller_of(context), len(requests))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(preparation.of(request)) for request in requests]
    except* ApiError as failures:
        first = _first(failures)
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                task.result().span.abandon(first)
        raise first from None
    return [task.result() for task in tasks]


async def answer_all(chats: ChatService, prepared: Sequence[PreparedChat]) -> tuple[list[Message], Usage]:
    """Returns a message for each conversation, and their total usage. If a conversation fails, cancels the others and
    raises its ApiError."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_answer(chats, chat)) for chat in prepared]
    except* ApiError as failures:
        # If several conversations fail, the client gets the first error.
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
    """Prepares the conversations of one request, a few at a time, so that they neither fill the queues that all
    requests share nor block the event loop."""

    def __init__(self, chats: ChatService, model: ServedModel, caller: Caller, num_conversations: int) -> None:
        self._caller = caller
        self._num_conversations = num_conversations
        self._chats = chats
        self._model = model
        # To the schedulers, all conversations are one request.
        self._turn_id = new_turn_id()
        self._window = asyncio.Semaphore(MAX_PREPARING)
        self._resolving = asyncio.Lock()
        # Pairs of options and their resolved constraints. There are few, because the options of one request's
        # conversations differ only in whether the prompt ends inside the model's reasoning.
        self._resolved: list[tuple[GenerationOptions, TokenConstraints | None]] = []

    async def of(self, request: ChatRequest) -> PreparedChat:
        """Prepares one conversation. Raises ApiError."""
        async with self._window:
            # Lets other tasks run. Without this, the event loop would prepare all conversations in one turn if they are
            # short, because no other await suspends the preparation of a short conversation.
            await asyncio.sleep(0)
            caller, forms, model = self._caller, self._chats.forms, self._model
            with self._chats.tracing.request("chat", model.info.name, caller) as span:
                generation, parsers = await prepare(request, model, caller, span.traceparent, forms, self._constraints)
                span.go_on()
                return PreparedChat(replace(generation, turn_id=self._turn_id), parsers, span)

    async def _constraints(self, options: GenerationOptions, model: ServedModel) -> TokenConstraints | None:
        """Returns the constraints that a conversation's options ask for. Compiles them only once for all conversations
        with equal options, because compiling a schema takes much longer than preparing a conversation."""
        async with self._resolving:
            for known, constraints in self._resolved:
                if known == options:
                    return constraints
            constraints = await options.constraints(model, self._num_conversations)
            self._resolved.append((options, constraints))
            return constraints


async def _answer(chats: ChatService, chat: PreparedChat) -> tuple[Message, Usage]:
    with chat.span as span:
        reader = MessageReader(chat.parsers, chat.request.prompts[0])
        try:
            usage = await chats.answers.gather(chat.request, span, reader.add)
        except ApiError as error:
            if error.param != "prompt":
                raise
            # The scheduler counts conversations as prompts, and accepts fewer of them in one request.
            raise replace(error, param="messages") from None
        (message,) = reader.messages
        return message, reader.usage(usage)


def _first(failures: BaseExceptionGroup[ApiError]) -> ApiError:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
