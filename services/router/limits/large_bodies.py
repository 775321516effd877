"""How many large bodies a router works on at a time.

What a body becomes can take ten times its bytes, until its prompt is tokens. So a few large bodies are worked on at a
time. Others wait as bytes, up to a bound on their sum and for a bounded time, and are then refused with 429.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from services.router.errors import overloaded

# A smaller body is converted beside any others.
LARGE_BODY_BYTES = 64 * 1024
MAX_AT_A_TIME = 4
# Of all large bodies that are worked on or wait.
MAX_HELD_BYTES = 64 * 1024 * 1024
MAX_WAIT_SECONDS = 30.0
_RETRY_AFTER_SECONDS = 5.0


class LargeBodies:
    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_AT_A_TIME)
        # Held while a large body becomes objects, which keeps the interpreter. Threads that do so at the same time keep
        # it for as long as all of them take.
        self.conversion = asyncio.Lock()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Of those that are worked on or wait."""
        return self._num_bytes

    async def enter(self, num_bytes: int) -> None:
        """Waits until this call may work on its body; does nothing where the body is small, or this call has entered
        before. The call leaves with `leave_large_bodies`. Raises ApiError when too many wait, or for too long."""
        place = _place.get()
        if num_bytes <= LARGE_BODY_BYTES or (place is not None and place.is_taken):
            return
        if self._num_bytes + num_bytes > MAX_HELD_BYTES:
            raise overloaded("Too many large requests are waiting to be read.", _RETRY_AFTER_SECONDS)
        self._num_bytes += num_bytes
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await self._room.acquire()
        except BaseException as failure:
            self._num_bytes -= num_bytes
            if not isinstance(failure, TimeoutError):
                raise
            raise overloaded("Large requests are read too slowly at the moment.", _RETRY_AFTER_SECONDS) from None
        _place.set(_Place(self, num_bytes))

    def _leave(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes
        self._room.release()


class _Place:
    """One call's right to work on its body. The tasks that the call starts share it."""

    __slots__ = ("_bodies", "_num_bytes")

    def __init__(self, bodies: LargeBodies, num_bytes: int) -> None:
        self._bodies: LargeBodies | None = bodies
        self._num_bytes = num_bytes

    @property
    def is_taken(self) -> bool:
        return self._bodies is not None

    def leave(self) -> None:
        """Idempotent."""
        bodies, self._bodies = self._bodies, None
        if bodies is not None:
            bodies._leave(self._num_bytes)


# Every call is a task with a context of its own.
_place: ContextVar[_Place | None] = ContextVar("large_body", default=None)


def leave_large_bodies() -> None:
    """Says that what this call read has become a prompt, or an error. Idempotent."""
    if (place := _place.get()) is not None:
        place.leave()
