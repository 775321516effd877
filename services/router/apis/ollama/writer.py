"""Writes an answer in Ollama's format: streamed as lines of JSON, or whole."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from services.router.chat import EndReason, Message, MessageDelta
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.http import (
    Segment,
    SegmentChange,
    Segmenter,
    SegmentKind,
    TokenNames,
    chat_logprobs,
    dump,
    segments_of,
    texts_of,
)
from services.router.logprobs import TokenLogprob
from services.router.template import parsed_arguments
from services.router.text import Vocabulary

NDJSON = "application/x-ndjson"
_DONE_REASONS = {EndReason.STOP: "stop", EndReason.LENGTH: "length", EndReason.TOOL_CALLS: "stop"}
NANOSECONDS = 1_000_000_000


class OllamaWriter:
    """A ChatWriter for /api/chat and /api/generate. Answers of /api/generate have no tool calls."""

    stream_type = NDJSON
    repeats_answer = False

    def __init__(self, model: str, *, is_chat: bool, vocabulary: Vocabulary | None) -> None:
        """`model`: the model's name in the request. `vocabulary`: None if no log probabilities are requested."""
        self._model = model
        self._is_chat = is_chat
        self._vocabulary = vocabulary
        self._started = time.monotonic()
        self._segmenter = Segmenter()
        self._has_begun = False
        self._end_reason: EndReason | None = None

    def events(self, delta: MessageDelta) -> bytes:
        events = list(self._segmenter.push(delta))
        if delta.end_reason is not None:
            self._end_reason = delta.end_reason
            events += self._segmenter.close()
        answers = []
        for change, segment, text in events:
            match change, segment.kind:
                case SegmentChange.GREW, SegmentKind.CONTENT:
                    answers.append(self._answer(text, "", []))
                case SegmentChange.GREW, SegmentKind.REASONING:
                    answers.append(self._answer("", text, []))
                case SegmentChange.CLOSED, SegmentKind.TOOL_CALL:
                    # A call is sent as a whole, when it is complete.
                    answers.append(self._answer("", "", [segment]))
        if delta.logprobs and self._vocabulary is not None:
            answers = answers or [self._answer("", "", [])]
            answers[0] |= self._logprobs(delta.logprobs)
        if not (answers or self._has_begun or delta.end_reason is not None):
            # The first token gets a line even if it has no text yet, because clients take the arrival of this line as
            # the time to the first token.
            answers = [self._answer("", "", [])]
        self._has_begun = True
        return b"".join([self._line(answer, done=False) for answer in answers])

    def end(self, usage: Usage) -> bytes:
        return self._line(self._answer("", "", []) | self._figures(self._end_reason, usage), done=True)

    def error(self, error: ApiError) -> bytes:
        return dump(ollama_error(error)) + b"\n"

    def whole(self, messages: list[Message], usage: Usage) -> Iterator[str]:
        (message,) = messages
        calls = [segment for segment in segments_of(message) if segment.kind is SegmentKind.TOOL_CALL]
        answer = self._answer(message.content, message.reasoning, calls) | self._logprobs(message.logprobs)
        fields = answer | self._figures(message.end_reason, usage)
        return chain(texts_of(self._fields(fields, done=True)), ("\n",))

    def _answer(self, content: str, thinking: str, calls: list[Segment]) -> dict[str, Any]:
        if not self._is_chat:
            return {"response": content} | ({"thinking": thinking} if thinking else {})
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = [_call(segment) for segment in calls]
        return {"message": message}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._vocabulary is None:
            return {}
        return {"logprobs": chat_logprobs(entries, TokenNames(self._vocabulary))["content"]}

    def _figures(self, reason: EndReason | None, usage: Usage) -> dict[str, Any]:
        """Returns the fields that only the last object of an answer has: the end reason, durations in nanoseconds, and
        token counts. `load_duration` is 0, because models are loaded before the first request."""
        total = int((time.monotonic() - self._started) * NANOSECONDS)
        prompt = min(total, int(usage.seconds_to_first_token * NANOSECONDS))
        return {
            "done_reason": None if reason is None else _DONE_REASONS[reason],
            "total_duration": total,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": usage.completion_tokens,
            "eval_duration": total - prompt,
        }

    def _line(self, fields: dict[str, Any], *, done: bool) -> bytes:
        return dump(self._fields(fields, done=done)) + b"\n"

    def _fields(self, fields: dict[str, Any], *, done: bool) -> dict[str, Any]:
        return {"model": self._model, "created_at": now(), **fields, "done": done}


def loaded(model: str, *, is_chat: bool, done_reason: str) -> bytes:
    """Returns the answer to a request without a prompt. Clients send these requests to load and unload models."""
    answer: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    return dump({"model": model, "created_at": now(), **answer, "done": True, "done_reason": done_reason}) + b"\n"


def ollama_error(error: ApiError) -> dict[str, str]:
    """Returns the error in the format of Ollama's API. The format has no field for the parameter's name, but the
    message contains it."""
    return {"error": error.message}


def now() -> str:
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    """Formats a Unix time in seconds as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _call(segment: Segment) -> dict[str, Any]:
    function = {"name": segment.name, "arguments": parsed_arguments(segment.text)}
    return {"id": segment.call_id, "function": function}
