"""Limits how many large bodies a router processes at a time.

A parsed body can take ten times the memory of its bytes, until its prompt is tokenized. So only a few large bodies are
processed at a time. Other large bodies wait unparsed. Both the time that a body waits and the total size of all large
bodies are limited; beyond these limits, the router answers with 429.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from services.router.errors import overloaded

# Bodies up to this size are not limited.
LARGE_BODY_BYTES = 64 * 1024
MAX_AT_A_TIME = 4
# Maximum total size of all large bodies that are being processed or wait.
MAX_HELD_BYTES = 64 * 1024 * 1024
MAX_WAIT_SECONDS = 30.0
_RETRY_AFTER_SECONDS = 5.0


class LargeBodies:
    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_AT_A_TIME)
        # Held while a large body is parsed. Parsing holds the interpreter lock, so bodies parsed in parallel would
        # block the event loop for the sum of their times.
        self.conversion = asyncio.Lock()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Total size of the large bodies that are being processed or wait."""
        return self._num_bytes

    async def enter(self, num_bytes: int) -> None:
        """Waits until fewer than MAX_AT_A_TIME large bodies are processed. Then counts the RPC's body as one of them,
        until `leave_large_bodies` is called. Returns at once if the body is small or already counted. Raises ApiError
        if the large bodies would exceed MAX_HELD_BYTES, or if the wait exceeds MAX_WAIT_SECONDS."""
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
            raise overloaded("The request waited too long behind other large requests.", _RETRY_AFTER_SECONDS) from None
        _place.set(_Place(self, num_bytes))

    def _leave(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes
        self._room.release()


class _Place:
    """Permission of one call to process its large body. All tasks of the call share the permission."""

    __slots__ = ("_bodies", "_num_bytes")

    def __init__(self, bodies: LargeBodies, num_bytes: int) -> None:
        self._bodies: LargeBodies | None = bodies
        self._num_bytes = num_bytes

    @property
    def is_taken(self) -> bool:
        return self._bodies is not None

    def leave(self) -> None:
        """Gives the permission back. Idempotent."""
        bodies, self._bodies = self._bodies, None
        if bodies is not None:
            bodies._leave(self._num_bytes)


# The current call's permission to process its large body. Every call runs in a task with its own context.
_place: ContextVar[_Place | None] = ContextVar("large_body", default=None)


def leave_large_bodies() -> None:
    """Gives up the current call's permission to process its large body. Called when the body has become a prompt or an
    error. Idempotent."""
    if (place := _place.get()) is not None:
        place.leave()
