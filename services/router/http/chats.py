"""Answers conversations. A ChatWriter formats each answer for one API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from services.router.chat import (
    ChatRequest,
    FormChoice,
    Message,
    MessageDelta,
    MessageParser,
    conversation_key,
    fit,
    plan_chat,
    prepare,
    with_reasoning,
)
from services.router.errors import ApiError
from services.router.generation import ChoiceDelta, Generator, Tracing, Usage
from services.router.http.answers import Answers, Written
from services.router.model import ServedModel
from services.router.rpc import Prepared, caller_of


class ChatWriter(Protocol):
    """Formats one answer for one API. Has the methods of AnswerWriter (services/router/http/answers.py), but gets
    parsed messages instead of the model's text."""

    # Content type of a stream.
    stream_type: str
    repeats_answer: bool

    def events(self, delta: MessageDelta) -> Written: ...

    def end(self, usage: Usage) -> Written: ...

    def error(self, error: ApiError) -> Written: ...

    def whole(self, messages: list[Message], usage: Usage) -> Iterator[str]:
        """Returns the body as consecutive texts. `messages`: one message for each choice."""


@dataclass(frozen=True, slots=True)
class ChatService:
    generator: Generator
    answers: Answers
    tracing: Tracing
    forms: FormChoice

    async def answer(
        self, request: ChatRequest, context: Any, writer_for: Callable[[ServedModel], ChatWriter], *, stream: bool
    ) -> Prepared:
        """Prepares the answer to a chat. `writer_for`: makes the answer's writer, which must not keep a reference to
        the request's body. Raises ApiError."""
        caller = caller_of(context)
        model = await self.generator.placement.models.find(request.model, lambda: conversation_key(request))
        with self.tracing.request("chat", model.info.name, caller) as span:
            generation_request, parsers = await prepare(request, model, caller, span.traceparent, self.forms)
            writer = MessageWriter(parsers, writer_for(model), generation_request.prompts[0])
            limit = request.max_tokens_param
            return span.prepared(
                self.answers.send, generation_request, span, context, writer, stream=stream, max_tokens_param=limit
            )

    async def prompt(self, request: ChatRequest, model: ServedModel) -> list[int]:
        """Returns the prompt's token ids. Does not compare their number with the context length, because clients count
        tokens to find out whether a prompt fits. Raises ApiError."""
        _, prompt = await fit(await plan_chat(request, model, self.forms), model, checks_length=False)
        return prompt


class MessageReader:
    """Builds one message for each choice of a request. The choice's parser separates reasoning, content and tool
    calls."""

    def __init__(self, parsers: list[MessageParser], prompt_token_ids: list[int]) -> None:
        self.messages = [Message() for _ in parsers]
        self._parsers = parsers
        self._prompt_token_ids = prompt_token_ids

    def parse(self, delta: ChoiceDelta) -> MessageDelta:
        parsed = self._parsers[delta.index].parse(delta)
        # Parsers do not handle these fields.
        parsed.stop_reason, parsed.token_ids = delta.stop_reason, delta.token_ids
        parsed.usage = None if delta.usage is None else self.usage(delta.usage)
        parsed.prompt_logprobs, parsed.prompt_token_ids = delta.prompt_logprobs, self._prompt_token_ids
        return parsed

    def add(self, delta: ChoiceDelta) -> None:
        self.messages[delta.index].add(self.parse(delta))

    def usage(self, usage: Usage) -> Usage:
        """Returns the usage with the number of reasoning tokens, which the parsers counted."""
        return with_reasoning(usage, self._parsers)


class MessageWriter:
    """An AnswerWriter that parses each choice's text and passes the parsed messages to a ChatWriter."""

    def __init__(self, parsers: list[MessageParser], writer: ChatWriter, prompt_token_ids: list[int]) -> None:
        self.stream_type = writer.stream_type
        self.repeats_answer = writer.repeats_answer
        self.error = writer.error
        self._reader = MessageReader(parsers, prompt_token_ids)
        self._writer = writer
        self.add = self._reader.add

    def events(self, delta: ChoiceDelta) -> Written:
        return self._writer.events(self._reader.parse(delta))

    def end(self, usage: Usage) -> Written:
        return self._writer.end(self._reader.usage(usage))

    def whole(self, usage: Usage) -> Iterator[str]:
        return self._writer.whole(self._reader.messages, self._reader.usage(usage))
