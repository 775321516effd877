"""The lines of a file or a pipe, one at a time, however large it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

# The gateway takes bodies of at most 31 MiB.
MAX_LINE_BYTES = 32 * 1024 * 1024
_BLOCK_BYTES = 256 * 1024
# What a pipe that can be written to takes at least without making one wait (PIPE_BUF).
_PIPE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Line:
    """`number` counts from 1, blank lines too. `text` is without the line's end, and None where it is too long."""

    number: int
    text: bytes | None


class LineSplitter:
    """Bytes to lines. Blank ones are dropped, and what is longer than `max_bytes` is not kept."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._number = 1
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> Iterator[Line]:
        """Lines that end in this block."""
        *ends, beginning = block.split(b"\n")
        for end in ends:
            self._add(end)
            yield from self.end()
        self._add(beginning)

    def end(self) -> Iterator[Line]:
        """The line that has begun, if it is one: it ends here."""
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
    """Until the end of the file, from where it stands. The event loop goes on while nothing comes from a pipe or a
    terminal."""
    splitter = LineSplitter()
    while block := await _read(fd):
        for line in splitter.feed(block):
            yield line
    for line in splitter.end():
        yield line


async def write_all(fd: int, data: bytes, *, may_wait: bool) -> None:
    """`may_wait`: whether it is something other than a file. The event loop goes on while a reader is slow."""
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
    """Returns once `fd` can be read or written without waiting. It stays in blocking mode: others may have it too."""
    ready = asyncio.Event()
    try:
        add(fd, ready.set)
    except PermissionError:  # epoll's word for a file, which is always ready
        return
    try:
        await ready.wait()
    finally:
        remove(fd)
