"""What a program prints never fails and never holds it up, whatever its reader does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import TextIO

import pytest

from shared.output import dropping

LINE = "x" * 1000


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reader's end, and the writer's as a stream that drops."""
    reader, writer = os.pipe()
    with closing(os.fdopen(writer, "w")) as original:
        stream = dropping(original)
        assert stream is not None
        yield reader, stream
        os.close(reader)


def test_what_is_read_is_whole(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    print("Grüße", LINE, file=stream, flush=True)
    assert os.read(reader, 5000).decode() == f"Grüße {LINE}\n"
    assert (stream.isatty(), stream.encoding.lower()) == (False, "utf-8")


def test_a_reader_that_is_gone_does_not_matter() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as original:
        stream = dropping(original)
        print(LINE, file=stream, flush=True)
        print(LINE, file=stream, flush=True)


def test_a_reader_that_does_not_read_loses_what_has_no_room(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    for _ in range(1000):  # A pipe holds 64 KiB.
        print(LINE, file=stream)
    held = len(os.read(reader, 1 << 20))
    assert 1000 <= held < 1000 * len(LINE)
    print("later", file=stream, flush=True)
    assert os.read(reader, 1 << 20).endswith(b"later\n"), "read again, it gets what comes then"


def test_a_stream_in_memory_or_none_at_all_stays() -> None:
    assert dropping(None) is None
