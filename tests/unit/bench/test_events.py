"""Server-sent events, however they are split."""

from __future__ import annotations

import pytest

from quire.bench.events import EventParser

STREAM = (
    b": a comment\n\n"
    b'data: {"text": "h\xc3\xa9"}\n\n'
    b"event: message\r\nid: 7\r\ndata:without a blank\r\n\r\n"
    b"data: two\ndata: lines\n\n"
    b"\n"
    b"data: [DONE]\n\n"
    b"data: cut"
)
EVENTS = [b'{"text": "h\xc3\xa9"}', b"without a blank", b"two\nlines", b"[DONE]"]


@pytest.mark.parametrize("size", range(1, 20))
def test_events_are_the_same_however_the_bytes_are_split(size: int) -> None:
    parser = EventParser()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]

    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


def test_an_event_is_there_with_its_last_byte() -> None:
    parser = EventParser()

    assert parser.feed(b"data: one\n") == []
    assert parser.feed(b"\n") == [b"one"]
