"""What a program prints never fails and never holds it up, whatever its reader does."""

from __future__ import annotations

import os
import pty
import socket
import tty
from collections.abc import Iterator
from contextlib import closing
from typing import TextIO

import pytest

from shared.output import PATIENCE_IS_FOR_S, PATIENCE_S, Patience, dropping

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


@pytest.mark.parametrize("length", [3, 100, 9000])
def test_a_terminal_that_does_not_read_holds_nothing_up(length: int) -> None:
    """It has room for a part of a line, unlike a pipe."""
    reader, writer = pty.openpty()
    tty.setraw(writer)
    with closing(os.fdopen(reader, "rb", buffering=0)), closing(os.fdopen(writer, "w")) as original:
        stream = dropping(original)
        assert stream is not None
        assert stream.isatty()
        for _ in range(60_000 // length):
            print("x" * length, file=stream)
        assert os.read(reader, 1 << 20).startswith(b"x" * min(length, 1000))


def test_a_socket_that_nobody_reads_holds_nothing_up() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs), closing(os.fdopen(ours.detach(), "w")) as original:
        stream = dropping(original)
        for _ in range(2000):
            print(LINE, file=stream)
        assert theirs.recv(2000).startswith(LINE.encode())


def test_lines_after_a_gap_are_whole(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    long = "x" * 9000  # More than is written at once.
    for _ in range(100):
        print(long, file=stream, flush=True)
    held = os.read(reader, 1 << 20)
    print("first", file=stream, flush=True)
    print("second", file=stream, flush=True)
    *whole, cut, first, second, end = (held + os.read(reader, 1 << 20)).decode().split("\n")
    assert {*whole} == {long}
    assert long.startswith(cut)
    assert (first, second, end) == ("first", "second", "")


def test_the_rest_of_a_line_that_was_cut_is_dropped(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    stream.write("x" * 100_000)
    stream.flush()
    held = os.read(reader, 1 << 20)
    stream.write("still the same line")
    stream.write(", up to here\nlater\n")
    stream.flush()
    assert os.read(reader, 1 << 20) == b"\nlater\n"
    assert set(held) == {ord("x")}


def test_a_slow_reader_takes_a_second_of_a_minute() -> None:
    now = 0.0
    granted = []

    def takes(seconds: float) -> bool:
        nonlocal now
        granted.append(seconds)
        now += min(seconds, 0.75)
        return seconds >= 0.75

    patience = Patience(lambda: now)
    assert [patience.wait(takes) for _ in range(3)] == [True, False, False]
    assert granted == [PATIENCE_S, PATIENCE_S - 0.75, 0.0]
    now = PATIENCE_IS_FOR_S
    assert patience.wait(takes)


def test_a_stream_in_memory_or_none_at_all_stays() -> None:
    assert dropping(None) is None
