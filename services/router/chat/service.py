"""Answers conversations. How an answer looks is its writer's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from services.router.answers import Answers
from services.router.calls import Caller, caller_of
from services.router.chat.message import Message, MessageDelta, MessageParser, PlainParser
from services.router.chat.request import ChatRequest
from services.router.errors import ApiError
from services.router.generation import ChoiceDelta, GenerationRequest, Generator, Usage
from services.router.model import ServedModel, check_generates, output_budget
from services.router.prompts import encode_chat
from services.router.tracing import Tracing
from shared.placement import chat_key


class ChatWriter(Protocol):
    """One answer in one API's words (services/router/answers.py), of messages instead of text."""

    # Content type of a stream.
    stream_type: str

    def events(self, delta: MessageDelta) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...

    def whole(self, messages: list[Message], usage: Usage) -> bytes:
        """A message for each choice."""


@dataclass(frozen=True, slots=True)
class ChatService:
    generator: Generator
    answers: Answers
    tracing: Tracing

    async def answer(
        self, request: ChatRequest, context: Any, writer_for: Callable[[ServedModel], ChatWriter], *, stream: bool
    ) -> None:
        """Raises ApiError as long as nothing is written."""
        caller = caller_of(context)
        model = await self.generator.placement.model(request.model)
        with self.tracing.request("chat", model.info.name, caller.traceparent) as span:
            generation_request, parsers = await prepare(request, model, caller, span.traceparent)
            writer = _MessageWriter(parsers, writer_for(model))
            await self.answers.send(generation_request, span, context, writer, stream=stream)


async def prepare(
    request: ChatRequest, model: ServedModel, caller: Caller, traceparent: str
) -> tuple[GenerationRequest, list[MessageParser]]:
    """What to generate, and what tells each choice's text apart. Raises ApiError."""
    check_generates(model.info)
    options = request.options
    prompt = await encode_chat(
        model,
        request.messages,
        add_special_tokens=request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        template_kwargs=request.template_kwargs,
        param=request.messages_param,
    )
    params = (request.messages_param, request.max_tokens_param)
    max_tokens = output_budget(model.info, len(prompt), options.stop.max_tokens, params)
    turns = ((message["role"], message["content"]) for message in request.messages)
    affinity = chat_key(model.info.name, options.cache_salt, turns)
    return (
        options.request(model, caller, traceparent, (prompt,), (max_tokens,), affinity),
        [PlainParser() for _ in range(options.n)],
    )


class _MessageWriter:
    """An AnswerWriter that has a ChatWriter write what its choices' parsers make of their text."""

    def __init__(self, parsers: list[MessageParser], writer: ChatWriter) -> None:
        self.stream_type = writer.stream_type
        self.end, self.error = writer.end, writer.error
        self._parsers = parsers
        self._writer = writer
        self._messages = [Message() for _ in parsers]

    def events(self, delta: ChoiceDelta) -> bytes:
        return self._writer.events(self._parsers[delta.index].parse(delta))

    def add(self, delta: ChoiceDelta) -> None:
        self._messages[delta.index].add(self._parsers[delta.index].parse(delta))

    def whole(self, usage: Usage) -> bytes:
        return self._writer.whole(self._messages, usage)
