"""Output whose reader may go away or stop reading: what cannot be written is dropped, and nothing else comes of it.

A server must start, restart and stop whoever reads what it prints: `quire serve | head -1` closes the pipe after a
line, a closed terminal fails every write, and a paused one takes none.
"""

from __future__ import annotations

import io
import os
import select
from typing import Any, TextIO

# A pipe that can be written to has room for so many bytes (POSIX, `PIPE_BUF`), so that no write of them waits.
_PIECE = select.PIPE_BUF
# How long a reader may hold up the first write that it has no room for. Later ones are dropped at once until it reads.
_PATIENCE_S = 1.0


def dropping(stream: TextIO | None) -> TextIO | None:
    """A stream in the place of `stream`, with its encoding, that never fails and never waits long. None, as Python has
    it for a descriptor that is closed, stays None."""
    if stream is None:
        return None
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream  # A program's own, in memory.
    stream.flush()
    raw = _Dropping(descriptor)
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True)


class _Dropping(io.RawIOBase):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_stalled = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Writes as much as the reader takes, and drops the rest."""
        whole = memoryview(data)
        left = whole
        try:
            while left and self._has_room():
                left = left[os.write(self._descriptor, left[:_PIECE]) :]
        except OSError:
            pass
        return len(whole)

    def _has_room(self) -> bool:
        self._is_stalled = not self._poll.poll(0 if self._is_stalled else 1000 * _PATIENCE_S)
        return not self._is_stalled
