"""Schedulers that refused a submission, and for how long each refusal holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.router.errors import ApiError, ErrorKind

# A refusal that is repeated holds for 1, 2, 4 ... loads, and for this many at most.
_MAX_LOADS = 64


class RefusingScheduler(Protocol):
    """What tells whether a scheduler's refusal still holds. A SchedulerConnection is one."""

    @property
    def num_hellos(self) -> int: ...

    @property
    def num_loads(self) -> int: ...

    @property
    def has_workers(self) -> bool: ...

    @property
    def is_draining(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Refusal:
    error: ApiError
    num_hellos: int
    num_loads: int
    # How many refusals in a row came from this scheduler since its last hello.
    count: int


class Refusals:
    """The refusals of one submission; it is not offered to a scheduler whose refusal holds.

    A scheduler that says hello may be another process: its refusal is forgotten. A scheduler that had no worker or was
    draining (UNAVAILABLE) is asked again once its load says that it has a worker and does not drain. Any other refusal
    holds until the next hello.
    """

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: dict[RefusingScheduler, _Refusal] = {}

    def add(self, connection: RefusingScheduler, error: ApiError) -> None:
        last = self._refusals.get(connection)
        is_first = last is None or last.num_hellos != connection.num_hellos
        count = 1 if last is None or is_first else last.count + 1
        self._refusals[connection] = _Refusal(error, connection.num_hellos, connection.num_loads, count)

    def get(self, connection: RefusingScheduler) -> ApiError | None:
        """The error of the refusal that holds, or None."""
        refusal = self._refusals.get(connection)
        if refusal is None or refusal.num_hellos != connection.num_hellos:
            return None
        if refusal.error.kind is ErrorKind.UNAVAILABLE and connection.has_workers and not connection.is_draining:
            num_loads = connection.num_loads - refusal.num_loads
            return None if num_loads >= min(1 << (refusal.count - 1), _MAX_LOADS) else refusal.error
        return refusal.error

    @property
    def num_holding(self) -> int:
        return sum(self.get(connection) is not None for connection in self._refusals)

    @property
    def errors(self) -> list[ApiError]:
        """All of them, oldest first, whether they hold or not."""
        return [refusal.error for refusal in self._refusals.values()]

    def forget(self, connection: RefusingScheduler) -> None:
        self._refusals.pop(connection, None)

    def forget_busy(self) -> None:
        """Schedulers that were too busy for a new request take a request that was accepted already."""
        for connection, refusal in list(self._refusals.items()):
            if refusal.error.kind is ErrorKind.OVERLOADED:
                del self._refusals[connection]

    def clear(self) -> None:
        self._refusals.clear()
