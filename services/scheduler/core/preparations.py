"""Preparations, such as compiled grammars, that a worker must make before the sequences that need them can run.

A preparation is requested when a sequence that needs it reaches the front of the queue, or on the sequence's arrival if
a slot is free. The worker prepares beside its steps. The sequences that need the preparation are set aside until it is
ready, so that no other sequence waits for it. The worker keeps a finished preparation for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from services.scheduler.core.request import Preparation

# Maximum number of preparations that the worker is asked for at the same time; others wait for a place. A worker
# accepts 128.
MAX_PENDING = 64
# Maximum number of preparations remembered as ready: half the number that a worker keeps, so that the worker still has
# each remembered one.
MAX_READY = 256


class Preparations:
    def __init__(self) -> None:
        self._wanted: list[Preparation] = []
        self._pending: dict[bytes, Preparation] = {}
        # Preparations that found no place among the pending ones, first come first served.
        self._backlog: OrderedDict[bytes, Preparation] = OrderedDict()
        self._ready: OrderedDict[bytes, None] = OrderedDict()
        self._num_awaited = 0  # number of awaited preparations in the backlog when it was last pruned

    def is_ready(self, preparation: Preparation) -> bool:
        """Whether a sequence that needs the preparation can be planned."""
        if preparation.key not in self._ready:
            return False
        self._ready.move_to_end(preparation.key)
        return True

    def request(self, preparation: Preparation, is_awaited: Callable[[Preparation], bool]) -> None:
        """Queues a preparation unless it is pending or queued already. The preparation goes to the worker once fewer
        than MAX_PENDING are pending. `is_awaited` tells whether a sequence still needs a preparation."""
        if preparation.key in self._pending or preparation.key in self._backlog:
            return
        if len(self._pending) < MAX_PENDING:
            self._begin(preparation)
            return
        if len(self._backlog) >= 2 * self._num_awaited + MAX_PENDING:
            # Drops preparations whose sequences were aborted. So the backlog stays in proportion to the waiting
            # sequences.
            self._backlog = OrderedDict((key, one) for key, one in self._backlog.items() if is_awaited(one))
            self._num_awaited = len(self._backlog)
        self._backlog[preparation.key] = preparation

    def fill_places(self, is_awaited: Callable[[Preparation], bool]) -> None:
        """Gives free places to preparations in the backlog that a sequence still needs."""
        while self._backlog and len(self._pending) < MAX_PENDING:
            # The backlog is an OrderedDict, because a plain dict passes all keys removed from its front before it finds
            # the first.
            _, preparation = self._backlog.popitem(last=False)
            if is_awaited(preparation):
                self._begin(preparation)

    def _begin(self, preparation: Preparation) -> None:
        self._pending[preparation.key] = preparation
        self._wanted.append(preparation)

    @property
    def current(self) -> Preparation | None:
        """The preparation that the worker is making; it makes one after the other. None if no preparation was sent to
        the worker.
        """
        first = next(iter(self._pending.values()), None)
        return None if first in self._wanted[:1] else first

    @property
    def only_pending(self) -> Preparation | None:
        """The pending preparation, if there is exactly one."""
        return next(iter(self._pending.values())) if len(self._pending) == 1 else None

    def is_busy_with_other(self, than: Preparation | None) -> bool:
        """Whether a preparation other than `than` is pending."""
        return len(self._pending) > (than is not None and than.key in self._pending)

    def take_wanted(self) -> list[Preparation]:
        """Returns the preparations to ask the worker for. Each is returned once."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def finish(self, key: bytes, is_ready: bool) -> Preparation:
        """Takes the worker's answer. Raises ValueError if the worker was not asked for this key."""
        preparation = self._pending.pop(key, None)
        if preparation is None:
            raise ValueError("the worker answered for a preparation that it was not asked for")
        if is_ready:
            self._ready[key] = None
            if len(self._ready) > MAX_READY:
                self._ready.popitem(last=False)
        return preparation

    def forget_worker(self) -> list[Preparation]:
        """Forgets everything: the next worker has prepared nothing. Returns the pending preparations in the order of
        their requests, and then the backlog."""
        forgotten = [*self._pending.values(), *self._backlog.values()]
        self._wanted.clear()
        self._pending.clear()
        self._backlog.clear()
        self._num_awaited = 0
        self._ready.clear()
        return forgotten
