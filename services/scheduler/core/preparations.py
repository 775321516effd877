"""What workers prepare for sequences before these are planned: asked for when their turn comes, then known a while. A
sequence that finds a slot as it arrives has its turn at once.

The worker works on it beside its steps, and the sequences that need it are set aside meanwhile, so that nobody else
waits for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from .request import Preparation

# Asked for at once; others wait for a place. A worker takes 128.
MAX_PENDING = 64
# Remembered as ready; half of what a worker keeps, so that it does not give up what is taken for ready here.
MAX_READY = 256


class Preparations:
    def __init__(self) -> None:
        self._wanted: list[Preparation] = []
        self._pending: dict[bytes, Preparation] = {}
        # Those that find no place among the pending ones, first come first served.
        self._backlog: OrderedDict[bytes, Preparation] = OrderedDict()
        self._ready: OrderedDict[bytes, None] = OrderedDict()
        self._num_awaited = 0  # of the backlog, when it was last looked through

    def is_ready(self, preparation: Preparation) -> bool:
        """Whether a sequence that needs it may be planned."""
        if preparation.key not in self._ready:
            return False
        self._ready.move_to_end(preparation.key)
        return True

    def request(self, preparation: Preparation, is_awaited: Callable[[Preparation], bool]) -> None:
        """Queues a preparation unless it is pending or queued already. It goes to the worker once fewer than
        MAX_PENDING are pending. `is_awaited`: whether a sequence still needs one."""
        if preparation.key in self._pending or preparation.key in self._backlog:
            return
        if len(self._pending) < MAX_PENDING:
            self._begin(preparation)
            return
        if len(self._backlog) >= 2 * self._num_awaited + MAX_PENDING:
            # Sequences are aborted while they wait. Memory stays in proportion to those that are left.
            self._backlog = OrderedDict((key, one) for key, one in self._backlog.items() if is_awaited(one))
            self._num_awaited = len(self._backlog)
        self._backlog[preparation.key] = preparation

    def fill_places(self, is_awaited: Callable[[Preparation], bool]) -> None:
        """Gives the places that are free to those that wait for one, where a sequence still needs them."""
        while self._backlog and len(self._pending) < MAX_PENDING:
            # In a plain dict, finding the first key means passing all those removed before it.
            _, preparation = self._backlog.popitem(last=False)
            if is_awaited(preparation):
                self._begin(preparation)

    def _begin(self, preparation: Preparation) -> None:
        self._pending[preparation.key] = preparation
        self._wanted.append(preparation)

    @property
    def current(self) -> Preparation | None:
        """What the worker is at: it prepares one after the other. None where it has been asked for nothing."""
        first = next(iter(self._pending.values()), None)
        return None if first in self._wanted[:1] else first

    @property
    def only_pending(self) -> Preparation | None:
        """What the worker is at, where that is one thing."""
        return next(iter(self._pending.values())) if len(self._pending) == 1 else None

    def is_busy_with_other(self, than: Preparation | None) -> bool:
        """Whether anything else is pending."""
        return len(self._pending) > (than is not None and than.key in self._pending)

    def take_wanted(self) -> list[Preparation]:
        """What the worker is to be asked for, each once."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def finish(self, key: bytes, is_ready: bool) -> Preparation:
        """The worker's answer. Raises ValueError where nothing was asked."""
        preparation = self._pending.pop(key, None)
        if preparation is None:
            raise ValueError("the worker prepared what it was not asked for")
        if is_ready:
            self._ready[key] = None
            if len(self._ready) > MAX_READY:
                self._ready.popitem(last=False)
        return preparation

    def forget_worker(self) -> list[Preparation]:
        """Another knows of nothing. Returns what was pending, in the order in which it was asked for, and then what
        waited to be asked for."""
        forgotten = [*self._pending.values(), *self._backlog.values()]
        self._wanted.clear()
        self._pending.clear()
        self._backlog.clear()
        self._num_awaited = 0
        self._ready.clear()
        return forgotten
