"""Preparations, such as compiled grammars, that a worker must make before the sequences that need them can run.

A preparation is requested when a sequence that needs it reaches the front of the queue, or on the sequence's arrival if
a slot is free. The worker makes preparations while its steps run. The sequences that need a preparation are set aside
until it is ready, so that the sequences behind them need not wait. The worker keeps a finished preparation for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from services.scheduler.core.request import Preparation

# Maximum number of preparations that the worker is asked for at the same time; others wait in the backlog. A worker
# accepts up to 128.
MAX_PENDING = 64
# Maximum number of preparations remembered as ready: half the number that a worker keeps, so that the worker still has
# each remembered one.
MAX_READY = 256


class Preparations:
    def __init__(self) -> None:
        self._wanted: list[Preparation] = []
        self._pending: dict[bytes, Preparation] = {}
        # Preparations that wait because MAX_PENDING others are pending; first come, first served.
        self._backlog: OrderedDict[bytes, Preparation] = OrderedDict()
        self._ready: OrderedDict[bytes, None] = OrderedDict()
        # While True, no preparation begins except by `request_alone`.
        self.is_held = False
        # Length of the backlog after the last removal of preparations that no sequence awaited any more.
        self._num_awaited = 0

    def is_ready(self, preparation: Preparation) -> bool:
        """Whether the worker has the preparation, so that sequences that need it can be planned."""
        if preparation.key not in self._ready:
            return False
        self._ready.move_to_end(preparation.key)
        return True

    def request(self, preparation: Preparation, is_awaited: Callable[[Preparation], bool]) -> None:
        """Requests a preparation unless it is pending or in the backlog already. If MAX_PENDING others are pending, the
        preparation waits in the backlog. `is_awaited` tells whether a sequence still needs a preparation."""
        if preparation.key in self._pending or preparation.key in self._backlog:
            return
        if len(self._pending) < MAX_PENDING and not self.is_held:
            self._begin(preparation)
            return
        if len(self._backlog) >= 2 * self._num_awaited + MAX_PENDING:
            # Drops preparations that no sequence needs any more, because their sequences were aborted. So the size of
            # the backlog stays in proportion to the number of waiting sequences.
            self._backlog = OrderedDict((key, one) for key, one in self._backlog.items() if is_awaited(one))
            self._num_awaited = len(self._backlog)
        self._backlog[preparation.key] = preparation

    def request_alone(self, preparation: Preparation) -> None:
        """Requests a preparation while all others are held. Call it only if none is pending."""
        self._backlog.pop(preparation.key, None)
        self._begin(preparation)

    def fill_places(self, is_awaited: Callable[[Preparation], bool]) -> None:
        """Requests preparations from the backlog while fewer than MAX_PENDING are pending. Drops those that no sequence
        needs any more."""
        while self._backlog and len(self._pending) < MAX_PENDING and not self.is_held:
            # The backlog is an OrderedDict. A plain dict would skip all keys that were removed from its front, one by
            # one, each time it looks for its first key.
            _, preparation = self._backlog.popitem(last=False)
            if is_awaited(preparation):
                self._begin(preparation)

    def _begin(self, preparation: Preparation) -> None:
        self._pending[preparation.key] = preparation
        self._wanted.append(preparation)

    @property
    def being_made(self) -> list[Preparation]:
        """The preparations of which the worker is making one: the oldest that sequences share, and the oldest for a
        single sequence. The worker makes one after the other, and shared ones first."""
        asked = [preparation for preparation in self._pending.values() if preparation not in self._wanted]
        shared = (one for one in asked if one.output_token_ids is None)
        single = (one for one in asked if one.output_token_ids is not None)
        return [*islice(shared, 1), *islice(single, 1)]

    @property
    def is_pending(self) -> bool:
        """Whether the worker is asked, or about to be asked, for a preparation."""
        return bool(self._pending)

    def take_wanted(self) -> list[Preparation]:
        """Returns the pending preparations that the worker has not been asked for yet. Each is returned once."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def finish(self, key: bytes, is_ready: bool) -> Preparation:
        """Ends and returns the pending preparation that the worker has answered. `is_ready`: whether the preparation
        succeeded. Raises ValueError if the worker was not asked for this key."""
        preparation = self._pending.pop(key, None)
        if preparation is None:
            raise ValueError("the worker answered for a preparation that it was not asked for")
        if is_ready:
            self._ready[key] = None
            if len(self._ready) > MAX_READY:
                self._ready.popitem(last=False)
        return preparation

    def use_up(self, preparation: Preparation) -> None:
        """Forgets that a preparation for a single sequence is ready, because the sequence starts with it."""
        self._ready.pop(preparation.key, None)

    def forget_worker(self) -> list[Preparation]:
        """Forgets all preparations, because the next worker has made none of them. Returns those that were not ready:
        first the pending ones in the order in which they were requested, then the backlog."""
        forgotten = [*self._pending.values(), *self._backlog.values()]
        self._wanted.clear()
        self._pending.clear()
        self._backlog.clear()
        self._num_awaited = 0
        self._ready.clear()
        return forgotten
