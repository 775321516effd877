"""Writes a response, streamed as events or whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from services.router.apis.responses.response import ResponseObject
from services.router.chat import EndReason, Message, MessageDelta
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.http import (
    EVENT_STREAM,
    Items,
    Segment,
    SegmentChange,
    Segmenter,
    SegmentEvent,
    SegmentKind,
    Written,
    in_pieces,
    segments_of,
    texts_of,
)
from services.router.logprobs import TokenLogprobs


class ResponseWriter:
    """A ChatWriter for /v1/responses."""

    stream_type = EVENT_STREAM
    repeats_answer = True

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._segmenter = Segmenter()
        self._num_events = 0
        self._end_reason: EndReason | None = None
        # `_new_logprobs`: log probabilities of the tokens since the last event with content. `_logprobs`: those of all
        # earlier tokens of the item that is being written.
        self._new_logprobs = TokenLogprobs()
        self._logprobs = TokenLogprobs()
        self._items: list[dict[str, Any]] = []

    def events(self, delta: MessageDelta) -> Written:
        parts: list[Iterable[str]] = []
        is_first = not self._num_events
        if is_first:
            parts.append(self._event("response.created", response=self._response.in_progress()))
            parts.append(self._event("response.in_progress", response=self._response.in_progress()))
        num_items = len(self._items)
        self._new_logprobs += delta.logprobs
        parts += [self._segment_event(event) for event in self._segmenter.push(delta)]
        if delta.end_reason is not None:
            self._end_reason = delta.end_reason
            parts += [self._segment_event(event) for event in self._segmenter.close()]
        # The first events repeat the request's tools, and when an item ends, several events repeat its whole text.
        # These long events are sent in pieces.
        texts = chain.from_iterable(parts)
        return in_pieces(texts) if is_first or num_items < len(self._items) else "".join(texts).encode()

    def end(self, usage: Usage) -> Written:
        response = self._response.ended(self._items, self._end_reason, usage)
        return in_pieces(self._event(f"response.{response['status']}", response=response))

    def error(self, error: ApiError) -> Written:
        return in_pieces(self._event("response.failed", response=self._response.failed(self._items, error)))

    def whole(self, messages: list[Message], usage: Usage) -> Iterator[str]:
        (message,) = messages
        segments = segments_of(message)
        items = [
            self._response.item(
                segment, _status(message.end_reason if segment is segments[-1] else None), message.logprobs
            )
            for segment in segments
        ]
        return texts_of(self._response.ended(items, message.end_reason, usage))

    def _segment_event(self, event: SegmentEvent) -> Iterable[str]:
        change, segment, text = event
        match change:
            case SegmentChange.OPENED:
                return self._opened(segment)
            case SegmentChange.GREW:
                return self._grew(segment, text)
            case SegmentChange.CLOSED:
                return self._closed(segment)

    def _opened(self, segment: Segment) -> Iterable[str]:
        item = self._response.item(segment, "in_progress", ())
        added = self._event("response.output_item.added", output_index=segment.index, item=item)
        if segment.kind is SegmentKind.TOOL_CALL:
            return added
        self._logprobs = TokenLogprobs()
        part = self._response.part(segment, "", ())
        return chain(added, self._event("response.content_part.added", **self._place(segment), part=part))

    def _grew(self, segment: Segment, text: str) -> Iterable[str]:
        place = self._place(segment)
        match segment.kind:
            case SegmentKind.CONTENT:
                return self._event("response.output_text.delta", **place, delta=text, logprobs=self._take_logprobs())
            case SegmentKind.REASONING:
                return self._event("response.reasoning_text.delta", **place, delta=text)
            case SegmentKind.TOOL_CALL:
                return self._event("response.function_call_arguments.delta", **place, delta=text)

    def _closed(self, segment: Segment) -> Iterable[str]:
        place, text = self._place(segment), segment.text
        match segment.kind:
            case SegmentKind.CONTENT:
                self._take_logprobs()
                logprobs = self._response.logprobs(self._logprobs)
                done = self._event("response.output_text.done", **place, text=text, logprobs=logprobs)
            case SegmentKind.REASONING:
                done = self._event("response.reasoning_text.done", **place, text=text)
            case SegmentKind.TOOL_CALL:
                done = self._event("response.function_call_arguments.done", **place, name=segment.name, arguments=text)
        if segment.kind is not SegmentKind.TOOL_CALL:
            part = self._response.part(segment, text, self._logprobs)
            done = chain(done, self._event("response.content_part.done", **place, part=part))
        item = self._response.item(segment, _status(self._end_reason), self._logprobs)
        self._items.append(item)
        return chain(done, self._event("response.output_item.done", output_index=segment.index, item=item))

    def _place(self, segment: Segment) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._response.item_id(segment), "output_index": segment.index}
        return place if segment.kind is SegmentKind.TOOL_CALL else place | {"content_index": 0}

    def _take_logprobs(self) -> Items | list[Any]:
        taken, self._new_logprobs = self._new_logprobs, TokenLogprobs()
        self._logprobs += taken
        return self._response.logprobs(taken)

    def _event(self, kind: str, **fields: object) -> Iterable[str]:
        """Returns the texts that make up an event. Each text is encoded only when it is taken from the iterator."""
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return chain((f"event: {kind}\ndata: ",), texts_of(event), ("\n\n",))


def _status(reason: EndReason | None) -> str:
    """Returns a finished item's status. `reason`: end reason of the message if the item is its last item, else None."""
    return "incomplete" if reason is EndReason.LENGTH else "completed"
