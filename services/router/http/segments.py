"""A message as a sequence of segments, for APIs whose streams open, fill and close one item after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from services.router.chat import Message, MessageDelta


class SegmentKind(Enum):
    REASONING = auto()
    CONTENT = auto()
    TOOL_CALL = auto()


@dataclass(slots=True)
class Segment:
    kind: SegmentKind
    # Position of the segment in its message.
    index: int
    # Id and name of a tool call; empty for other segments.
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far. For a tool call: its arguments, JSON as the model wrote it."""
        return "".join(self.pieces)


class SegmentChange(Enum):
    OPENED = auto()
    GREW = auto()
    CLOSED = auto()


# (change, the segment that changed, text that the change added to the segment)
SegmentEvent = tuple[SegmentChange, Segment, str]


class Segmenter:
    """Splits one message into segments. At most one segment is open; a closed segment does not change."""

    __slots__ = ("_open", "_open_call", "segments")

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._open: Segment | None = None
        # Index of the open tool call among the message's tool calls.
        self._open_call = -1

    def push(self, delta: MessageDelta) -> Iterator[SegmentEvent]:
        for kind, text in ((SegmentKind.REASONING, delta.reasoning), (SegmentKind.CONTENT, delta.content)):
            if text:
                if self._open is None or self._open.kind is not kind:
                    yield from self._begin(kind)
                yield self._grow(text)
        for call in delta.tool_calls:
            if self._open is None or self._open.kind is not SegmentKind.TOOL_CALL or self._open_call != call.index:
                self._open_call = call.index
                yield from self._begin(SegmentKind.TOOL_CALL, call.id, call.name)
            if call.arguments:
                yield self._grow(call.arguments)

    def close(self) -> Iterator[SegmentEvent]:
        """Ends the message. An empty message gets an empty content segment, because clients expect at least one
        segment."""
        if not self.segments:
            yield from self._begin(SegmentKind.CONTENT)
        if self._open is not None:
            yield SegmentChange.CLOSED, self._open, ""
            self._open = None

    def _begin(self, kind: SegmentKind, call_id: str = "", name: str = "") -> Iterator[SegmentEvent]:
        if self._open is not None:
            yield SegmentChange.CLOSED, self._open, ""
        self._open = Segment(kind, len(self.segments), call_id, name)
        self.segments.append(self._open)
        yield SegmentChange.OPENED, self._open, ""

    def _grow(self, text: str) -> SegmentEvent:
        assert self._open is not None
        self._open.pieces.append(text)
        return SegmentChange.GREW, self._open, text


def segments_of(message: Message) -> list[Segment]:
    """Returns the segments of a whole message: reasoning, content and tool calls."""
    segmenter = Segmenter()
    texts = MessageDelta(0, message.content, message.reasoning)
    for _ in segmenter.push(texts):
        pass
    for call in message.tool_calls:
        index = len(segmenter.segments)
        segmenter.segments.append(Segment(SegmentKind.TOOL_CALL, index, call.id, call.name, [call.arguments]))
    for _ in segmenter.close():
        pass
    return segmenter.segments
