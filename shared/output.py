"""An output stream that drops text instead of failing or blocking when its reader goes away or stops reading.

A server must start, restart its parts and stop even if its output is not read: `quire serve | head -1` closes the pipe
after one line, a closed terminal fails every write, and a paused terminal blocks it.
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

# Maximum number of seconds that the writer waits for a slow reader, in total within PATIENCE_IS_FOR_S seconds.
PATIENCE_S = 1.0
PATIENCE_IS_FOR_S = 60.0


def dropping(stream: TextIO | None) -> TextIO | None:
    """Wraps `stream` so that a write never raises, and waits for a slow reader at most one second per minute. Text that
    does not get through is dropped: whole lines, or the ends of lines. The encoding stays the same. Returns None if
    `stream` is None. (Python sets sys.stdout to None if its descriptor is closed when Python starts.)"""
    if stream is None:
        return None
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream  # An in-memory stream has no descriptor.
    stream.flush()
    raw = _Dropping(descriptor)
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True)


class Patience:
    """A budget of seconds to wait for a slow reader, renewed every PATIENCE_IS_FOR_S seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._left = PATIENCE_S

    def wait(self, until_ready: Callable[[float], bool]) -> bool:
        """Calls `until_ready` with the seconds left in the budget, and subtracts the duration of the call from the
        budget. Returns the result of `until_ready`."""
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
        # _is_inside_line: the text written so far ends inside a line. _is_cut: the rest of that line was dropped.
        # _drops_rest: the next text up to a newline belongs to a dropped line.
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
        """Writes as much as the reader accepts before the patience (see `Patience`) runs out, and drops the rest.
        Returns the size of `data`, as if all of it were written."""
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
        """Returns the number of bytes written."""
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
    """Returns (own, write). `write(data)` writes to `descriptor` without blocking: it writes as many bytes as fit, and
    raises BlockingIOError if none fit. For a regular file, `write` is plain os.write. `own`: a new descriptor that the
    caller must close; None if there is none."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        connection = socket.socket(fileno=os.dup(descriptor))
        return None, lambda data: connection.send(data, socket.MSG_DONTWAIT)
    if stat.S_ISFIFO(kind) or os.isatty(descriptor):
        with contextlib.suppress(OSError):
            # Open a new file description: O_NONBLOCK on `descriptor` itself would affect every process that shares it.
            own = os.open(f"/dev/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            return own, functools.partial(os.write, own)
    return None, functools.partial(os.write, descriptor)
