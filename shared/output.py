"""A stream whose reader may go away or stop reading. It drops what it cannot write, and raises no error.

A server must start, restart its parts and stop even when nobody reads what it prints: `quire serve | head -1` closes
the pipe after a line, a closed terminal fails every write, and a paused one takes none.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import socket
import stat
import time
from collections.abc import Callable
from typing import Any, TextIO

# How long a reader may hold up whoever writes, in all, within so many seconds.
PATIENCE_S = 1.0
PATIENCE_IS_FOR_S = 60.0


def dropping(stream: TextIO | None) -> TextIO | None:
    """A stream in the place of `stream`, with its encoding, that never fails and waits for its reader one second of a
    minute at most. What it drops are whole lines, or the ends of lines. None, as Python has it for a descriptor that is
    closed, stays None."""
    if stream is None:
        return None
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream  # A program's own, in memory.
    stream.flush()
    raw = _Dropping(descriptor)
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True)


class Patience:
    """Seconds that may still be waited."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._left = PATIENCE_S

    def wait(self, until_ready: Callable[[float], bool]) -> bool:
        """Calls `until_ready` with the seconds that are left, and returns what it returns."""
        start = self._clock()
        if start - self._began >= PATIENCE_IS_FOR_S:
            self._began, self._left = start, PATIENCE_S
        is_ready = until_ready(self._left)
        self._left = max(0.0, self._left - (self._clock() - start))
        return is_ready


class _Dropping(io.RawIOBase):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own, self._write_some = _writer(descriptor)
        self._patience = Patience()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        # Whether the reader's text ends inside a line, whether that line will not go on, and whether what comes next is
        # the rest of a line that was dropped.
        self._is_inside_line = False
        self._is_cut = False
        self._drops_rest = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def close(self) -> None:
        if self._own is not None and not self.closed:
            os.close(self._own)
        super().close()

    def write(self, data: Any, /) -> int:
        """Writes as much as the reader takes, and drops the rest."""
        given = text = bytes(data)
        if self._drops_rest:
            _, line_break, text = given.partition(b"\n")
            self._drops_rest = not line_break
        if text and self._is_cut:
            text = b"\n" + text
        written = self._write(text)
        if written:
            self._is_inside_line, self._is_cut = text[written - 1] != ord("\n"), False
        if written < len(text):
            self._is_cut = self._is_inside_line
            self._drops_rest = not text.endswith(b"\n")
        return len(given)

    def _write(self, text: bytes) -> int:
        """Returns how many bytes of it."""
        left = memoryview(text)
        with contextlib.suppress(OSError):
            while left:
                try:
                    left = left[self._write_some(left) :]
                except BlockingIOError:
                    if not self._patience.wait(lambda seconds: bool(self._poll.poll(1000 * seconds))):
                        break
        return len(text) - len(left)


def _writer(descriptor: int) -> tuple[int | None, Callable[[memoryview], int]]:
    """What writes to it as much as has room, and raises BlockingIOError where nothing has; and a descriptor that it
    opened for that."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        connection = socket.socket(fileno=os.dup(descriptor))
        return None, lambda data: connection.send(data, socket.MSG_DONTWAIT)
    if stat.S_ISFIFO(kind) or os.isatty(descriptor):
        with contextlib.suppress(OSError):
            # Opened anew: a flag of `descriptor` itself would hold for every process that has it.
            own = os.open(f"/dev/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            return own, functools.partial(os.write, own)
    return None, functools.partial(os.write, descriptor)
