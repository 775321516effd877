"""Reads lines one at a time, from a pipe or a file of any size, and writes bytes. Neither blocks the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

# Maximum length of a line. Every body that the gateway accepts fits in one: bodies have at most 31 MiB.
MAX_LINE_BYTES = 32 * 1024 * 1024
_BLOCK_BYTES = 256 * 1024
# Number of bytes that a writable pipe accepts without blocking (PIPE_BUF).
_PIPE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input. `number` counts from 1; blank lines count, too. `text`: the line without its end; None if
    the line is too long."""

    number: int
    text: bytes | None


class LineSplitter:
    """Splits blocks of bytes into lines. Drops blank lines, and the text of lines longer than `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._number = 1
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> Iterator[Line]:
        """Yields the lines that end in this block."""
        *ends, beginning = block.split(b"\n")
        for end in ends:
            self._add(end)
            yield from self.end()
        self._add(beginning)

    def end(self) -> Iterator[Line]:
        """Ends the current line and yields it unless it is blank."""
        line = Line(self._number, None if self._size > self._max_bytes else b"".join(self._pieces))
        self._number += 1
        self._pieces, self._size = [], 0
        if line.text is None or line.text.strip():
            yield line

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)


async def read_lines(fd: int) -> AsyncIterator[Line]:
    """Yields lines from the current position to the end of the file. Does not block the event loop while a pipe or a
    terminal has no data."""
    splitter = LineSplitter()
    while block := await _read(fd):
        for line in splitter.feed(block):
            yield line
    for line in splitter.end():
        yield line


async def write_all(fd: int, data: bytes, *, may_wait: bool) -> None:
    """Writes all of `data`. `may_wait`: True if `fd` is a pipe or a terminal, so that a write could block; the function
    then waits for a slow reader without blocking the event loop."""
    left = memoryview(data)
    while left:
        if may_wait:
            loop = asyncio.get_running_loop()
            await _until_ready(fd, loop.add_writer, loop.remove_writer)
        left = left[os.write(fd, left[:_PIPE_BYTES] if may_wait else left) :]


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    await _until_ready(fd, loop.add_reader, loop.remove_reader)
    return os.read(fd, _BLOCK_BYTES)


async def _until_ready(fd: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], bool]) -> None:
    """Waits until `fd` can be read or written without blocking. Leaves `fd` in blocking mode, because other processes
    might share it."""
    ready = asyncio.Event()
    try:
        add(fd, ready.set)
    except PermissionError:  # epoll refuses regular files, which are always ready
        return
    try:
        await ready.wait()
    finally:
        remove(fd)
