"""Writes an answer in Anthropic's format, streamed or whole."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from services.router.apis.anthropic.errors import anthropic_error
from services.router.chat import EndReason, Message, MessageDelta
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.http import (
    EVENT_STREAM,
    Segment,
    SegmentChange,
    Segmenter,
    SegmentEvent,
    SegmentKind,
    dumps,
    segments_of,
    texts_of,
)
from services.router.template import parsed_arguments

_STOP_REASONS = {
    EndReason.STOP: "end_turn",
    EndReason.LENGTH: "max_tokens",
    EndReason.TOOL_CALLS: "tool_use",
}
# Signature of all thinking blocks. The server does not check signatures, but clients drop thinking blocks without one.
_SIGNATURE = "quire"


class AnthropicWriter:
    """A ChatWriter (services/router/http/chats.py) for /v1/messages."""

    stream_type = EVENT_STREAM
    repeats_answer = False

    def __init__(self, model: str, shows_thinking: bool, max_tokens: int = 0) -> None:
        """`shows_thinking`: if false, thinking blocks have no text. `max_tokens`: the request's limit. If an answer is
        cut although it has fewer tokens than `max_tokens`, then the context was full."""
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._shows_thinking = shows_thinking
        self._max_tokens = max_tokens
        self._segmenter = Segmenter()
        self._has_begun = False
        self._end: tuple[EndReason | None, str | int | None] = (None, None)

    def events(self, delta: MessageDelta) -> bytes:
        parts = []
        if not self._has_begun:
            self._has_begun = True
            # The number of cached tokens is known only at the end, so the first event counts none.
            usage = Usage(len(delta.prompt_token_ids), 0, 0)
            parts += [_event("message_start", message=self._message([], None, None, usage)), _event("ping")]
        parts += [self._segment_event(event) for event in self._segmenter.push(delta)]
        if delta.end_reason is not None:
            self._end = delta.end_reason, delta.stop_reason
            parts += [self._segment_event(event) for event in self._segmenter.close()]
        return "".join(parts).encode()

    def end(self, usage: Usage) -> bytes:
        stop_reason, stop_sequence = self._stop(*self._end, usage)
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        return (_event("message_delta", delta=delta, usage=_usage(usage)) + _event("message_stop")).encode()

    def error(self, error: ApiError) -> bytes:
        return f"event: error\ndata: {dumps(anthropic_error(error))}\n\n".encode()

    def whole(self, messages: list[Message], usage: Usage) -> Iterator[str]:
        (message,) = messages
        blocks = [self._block(segment, segment.text) for segment in segments_of(message)]
        return texts_of(self._message(blocks, *self._stop(message.end_reason, message.stop_reason, usage), usage))

    def _stop(
        self, reason: EndReason | None, stop_reason: str | int | None, usage: Usage
    ) -> tuple[str | None, str | None]:
        """Returns (stop_reason, stop_sequence)."""
        if reason is None:
            return None, None
        if reason is EndReason.STOP and isinstance(stop_reason, str):
            return "stop_sequence", stop_reason
        if reason is EndReason.LENGTH and usage.completion_tokens < self._max_tokens:
            return "model_context_window_exceeded", None
        return _STOP_REASONS[reason], None

    def _message(
        self, blocks: list[dict[str, Any]], stop_reason: str | None, stop_sequence: str | None, usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": _usage(usage),
        }

    def _block(self, segment: Segment, text: str) -> dict[str, Any]:
        match segment.kind:
            case SegmentKind.CONTENT:
                return {"type": "text", "text": text}
            case SegmentKind.REASONING:
                thinking = text if self._shows_thinking else ""
                return {"type": "thinking", "thinking": thinking, "signature": _SIGNATURE if text else ""}
            case SegmentKind.TOOL_CALL:
                arguments = parsed_arguments(text) if text else {}
                return {"type": "tool_use", "id": segment.call_id, "name": segment.name, "input": arguments}

    def _segment_event(self, event: SegmentEvent) -> str:
        change, segment, text = event
        match change:
            case SegmentChange.OPENED:
                return _event("content_block_start", index=segment.index, content_block=self._block(segment, ""))
            case SegmentChange.GREW:
                delta = self._delta(segment, text)
                return "" if delta is None else _event("content_block_delta", index=segment.index, delta=delta)
            case SegmentChange.CLOSED:
                stop = _event("content_block_stop", index=segment.index)
                if segment.kind is not SegmentKind.REASONING:
                    return stop
                signature = {"type": "signature_delta", "signature": _SIGNATURE}
                return _event("content_block_delta", index=segment.index, delta=signature) + stop

    def _delta(self, segment: Segment, text: str) -> dict[str, str] | None:
        match segment.kind:
            case SegmentKind.CONTENT:
                return {"type": "text_delta", "text": text}
            case SegmentKind.REASONING:
                return {"type": "thinking_delta", "thinking": text} if self._shows_thinking else None
            case SegmentKind.TOOL_CALL:
                return {"type": "input_json_delta", "partial_json": text}


def _usage(usage: Usage) -> dict[str, int]:
    """Returns Anthropic's usage: input_tokens leaves out tokens from the prefix cache, which are counted separately."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(kind: str, **fields: object) -> str:
    return f"event: {kind}\ndata: {dumps({'type': kind, **fields})}\n\n"
