"""Answers conversations. How an answer looks is its writer's business."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.router.answers import Answers
from services.router.calls import Caller, caller_of
from services.router.chat.forms import FormChoice
from services.router.chat.message import Message, MessageDelta, MessageParser, PlainParser
from services.router.chat.request import ChatRequest
from services.router.chat.text_parser import TextParser
from services.router.chat.turn import plan_turn
from services.router.chat_template import text_of
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
    forms: FormChoice

    async def answer(
        self, request: ChatRequest, context: Any, writer_for: Callable[[ServedModel], ChatWriter], *, stream: bool
    ) -> None:
        """Raises ApiError as long as nothing is written."""
        caller = caller_of(context)
        model = await self.generator.placement.model(request.model)
        with self.tracing.request("chat", model.info.name, caller.traceparent) as span:
            generation_request, parsers = await prepare(request, model, caller, span.traceparent, self.forms)
            writer = MessageWriter(parsers, writer_for(model), generation_request.prompts[0])
            await self.answers.send(generation_request, span, context, writer, stream=stream)

    async def count_tokens(self, request: ChatRequest, context: Any) -> int:
        """How many tokens its prompt has. Raises ApiError, also where they leave no room for an answer."""
        model = await self.generator.placement.model(request.model)
        generation_request, _ = await prepare(request, model, caller_of(context), "", self.forms)
        (prompt,) = generation_request.prompts
        return len(prompt)


async def prepare(
    request: ChatRequest, model: ServedModel, caller: Caller, traceparent: str, forms: FormChoice
) -> tuple[GenerationRequest, list[MessageParser]]:
    """What to generate, and what tells each choice's text apart. Raises ApiError."""
    check_generates(model.info)
    turn = await plan_turn(request, model, forms)
    options = dataclasses.replace(request.options, structure=turn.structure)
    prompt = await encode_chat(
        model,
        turn.messages,
        add_special_tokens=request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template=request.chat_template,
        template_kwargs=turn.template_kwargs,
        tools=turn.template_tools,
        documents=request.documents,
        truncation=options.truncation,
        max_tokens=options.stop.max_tokens,
        param=request.messages_param,
    )
    params = (request.messages_param, request.max_tokens_param)
    max_tokens = output_budget(model.info, len(prompt), options.stop.max_tokens, params)
    turns = ((message["role"], text_of(message)) for message in turn.messages)
    affinity = chat_key(model.info.name, options.cache_salt, turns)
    generation_request = await options.request(model, caller, traceparent, (prompt,), (max_tokens,), affinity)
    text_plan = await turn.text_plan(model, prompt, options.skip_special_tokens)
    if text_plan.is_plain:
        return generation_request, [PlainParser() for _ in range(options.n)]
    visible = model.tokenizer.vocabulary.special_ids(text_plan.hidden_tokens)
    return (
        dataclasses.replace(generation_request, visible_token_ids=visible),
        [TextParser(text_plan) for _ in range(options.n)],
    )


class MessageWriter:
    """An AnswerWriter that has a ChatWriter write what its choices' parsers make of their text."""

    def __init__(self, parsers: list[MessageParser], writer: ChatWriter, prompt_token_ids: list[int]) -> None:
        self.stream_type = writer.stream_type
        self.error = writer.error
        self._parsers = parsers
        self._writer = writer
        self._prompt_token_ids = prompt_token_ids
        self._messages = [Message() for _ in parsers]

    def events(self, delta: ChoiceDelta) -> bytes:
        return self._writer.events(self._parse(delta))

    def add(self, delta: ChoiceDelta) -> None:
        self._messages[delta.index].add(self._parse(delta))

    def end(self, usage: Usage) -> bytes:
        return self._writer.end(with_reasoning(usage, self._parsers))

    def whole(self, usage: Usage) -> bytes:
        return self._writer.whole(self._messages, with_reasoning(usage, self._parsers))

    def _parse(self, delta: ChoiceDelta) -> MessageDelta:
        parsed = self._parsers[delta.index].parse(delta)
        # What no parser changes.
        parsed.stop_reason, parsed.token_ids, parsed.usage = delta.stop_reason, delta.token_ids, delta.usage
        parsed.prompt_logprobs, parsed.prompt_token_ids = delta.prompt_logprobs, self._prompt_token_ids
        return parsed


def with_reasoning(usage: Usage, parsers: Sequence[MessageParser]) -> Usage:
    """The usage with what the parsers counted."""
    return dataclasses.replace(usage, reasoning_tokens=sum(parser.num_reasoning_tokens for parser in parsers))
