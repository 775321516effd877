"""Records which schedulers refused a submission, and how long each refusal holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.router.errors import ApiError, ErrorKind

# Maximum number of load messages for which a refusal holds. This concerns refusals with UNAVAILABLE from a scheduler
# whose load messages report a worker: the n-th refusal in a row holds for 2 ** (n - 1) load messages.
_MAX_LOADS = 64


class RefusingScheduler(Protocol):
    """The properties of a scheduler that decide whether its refusal still holds. A SchedulerConnection has them."""

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
    # Number of refusals in a row by this scheduler since its last hello.
    count: int


class Refusals:
    """The refusals of one submission. While a scheduler's refusal holds, the submission is not offered to that
    scheduler.

    A refusal holds until the scheduler's next hello, which can come from another process. A refusal with UNAVAILABLE
    (no worker, or draining) can end earlier: when the scheduler has a worker and is not draining, and has sent enough
    load messages since the refusal (see _MAX_LOADS).
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
        """Returns the error of the scheduler's refusal if it still holds, and None otherwise."""
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
        """The errors of all refusals, oldest first, whether or not they still hold."""
        return [refusal.error for refusal in self._refusals.values()]

    def forget(self, connection: RefusingScheduler) -> None:
        self._refusals.pop(connection, None)

    def forget_busy(self) -> None:
        """Forgets OVERLOADED refusals. Call it for sequences that a scheduler has accepted once, because schedulers do
        not refuse such sequences for overload."""
        for connection, refusal in list(self._refusals.items()):
            if refusal.error.kind is ErrorKind.OVERLOADED:
                del self._refusals[connection]

    def clear(self) -> None:
        self._refusals.clear()
