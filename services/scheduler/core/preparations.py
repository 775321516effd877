"""Preparations, such as compiled grammars, that a worker must make before the sequences that need them can run.

A preparation is requested when a sequence that needs it reaches the front of the queue, or on the sequence's arrival if
a slot is free. The worker makes preparations while its steps run. The sequences that need a preparation are set aside
until it is ready, so that the sequences behind them need not wait. The worker keeps a finished preparation for a while.

Sequences share most preparations. One for a single sequence takes longer, and many can be needed at once, so only a few
of them are requested at a time. They do not delay those that are shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from services.scheduler.core.request import Preparation

# Maximum number of preparations that the worker is asked for at the same time; others wait in a backlog. A worker
# accepts up to 128.
MAX_PENDING = 64
MAX_PENDING_SINGLE = 8
# Maximum number of preparations remembered as ready. It is below the number that a worker keeps, so that the worker
# still has each remembered one.
MAX_READY = 256
MAX_READY_SINGLE = 64


class _Kind:
    """The preparations of one kind: those that sequences share, or those for single sequences."""

    def __init__(self, max_pending: int, max_ready: int) -> None:
        self.pending: dict[bytes, Preparation] = {}
        # Preparations that wait because `max_pending` others are pending; first come, first served.
        self.backlog: OrderedDict[bytes, Preparation] = OrderedDict()
        self.ready: OrderedDict[bytes, None] = OrderedDict()
        self._max_pending = max_pending
        self._max_ready = max_ready
        # Length of the backlog after the last removal of preparations that no sequence awaited any more.
        self._num_awaited = 0

    @property
    def has_place(self) -> bool:
        return len(self.pending) < self._max_pending

    def put_off(self, preparation: Preparation, is_awaited: Callable[[Preparation], bool]) -> None:
        """Puts a preparation into the backlog."""
        if len(self.backlog) >= 2 * self._num_awaited + MAX_PENDING:
            # Drops preparations that no sequence needs any more, because their sequences were aborted. So the size of
            # the backlog stays in proportion to the number of waiting sequences.
            self.backlog = OrderedDict((key, one) for key, one in self.backlog.items() if is_awaited(one))
            self._num_awaited = len(self.backlog)
        self.backlog[preparation.key] = preparation

    def is_now_ready(self, key: bytes) -> None:
        self.ready[key] = None
        if len(self.ready) > self._max_ready:
            self.ready.popitem(last=False)

    def forget(self) -> list[Preparation]:
        forgotten = [*self.pending.values(), *self.backlog.values()]
        self.pending.clear()
        self.backlog.clear()
        self._num_awaited = 0
        self.ready.clear()
        return forgotten


class Preparations:
    def __init__(self) -> None:
        self._wanted: list[Preparation] = []
        self._shared = _Kind(MAX_PENDING, MAX_READY)
        self._single = _Kind(MAX_PENDING_SINGLE, MAX_READY_SINGLE)
        # While True, no preparation begins except by `request_alone`.
        self.is_held = False

    def _kind(self, preparation: Preparation) -> _Kind:
        return self._single if preparation.is_single else self._shared

    def is_ready(self, preparation: Preparation) -> bool:
        """Whether the worker has the preparation, so that sequences that need it can be planned."""
        ready = self._kind(preparation).ready
        if preparation.key not in ready:
            return False
        ready.move_to_end(preparation.key)
        return True

    def request(self, preparation: Preparation, is_awaited: Callable[[Preparation], bool]) -> None:
        """Requests a preparation unless it is pending or in the backlog already. If as many of its kind are pending as
        may be, the preparation waits in the backlog. `is_awaited` tells whether a sequence still needs a preparation.
        """
        kind = self._kind(preparation)
        if preparation.key in kind.pending or preparation.key in kind.backlog:
            return
        if kind.has_place and not self.is_held:
            self._begin(preparation)
        else:
            kind.put_off(preparation, is_awaited)

    def request_alone(self, preparation: Preparation) -> None:
        """Requests a preparation while all others are held. Call it only if none is pending."""
        self._kind(preparation).backlog.pop(preparation.key, None)
        self._begin(preparation)

    def fill_places(self, is_awaited: Callable[[Preparation], bool]) -> None:
        """Requests preparations from the backlogs while there are places for them. Drops those that no sequence needs
        any more."""
        for kind in (self._shared, self._single):
            while kind.backlog and kind.has_place and not self.is_held:
                # The backlog is an OrderedDict. A plain dict would skip all keys that were removed from its front, one
                # by one, each time it looks for its first key.
                _, preparation = kind.backlog.popitem(last=False)
                if is_awaited(preparation):
                    self._begin(preparation)

    def _begin(self, preparation: Preparation) -> None:
        self._kind(preparation).pending[preparation.key] = preparation
        self._wanted.append(preparation)

    @property
    def being_made(self) -> list[Preparation]:
        """The preparations of which the worker is making one: the oldest of each kind. It makes one at a time."""
        asked = (
            (preparation for preparation in kind.pending.values() if preparation not in self._wanted)
            for kind in (self._shared, self._single)
        )
        return [preparation for of_kind in asked for preparation in islice(of_kind, 1)]

    @property
    def is_pending(self) -> bool:
        """Whether the worker is asked, or about to be asked, for a preparation."""
        return bool(self._shared.pending or self._single.pending)

    def take_wanted(self) -> list[Preparation]:
        """Returns the pending preparations that the worker has not been asked for yet. Each is returned once."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def finish(self, key: bytes, is_ready: bool) -> Preparation:
        """Ends and returns the pending preparation that the worker has answered. `is_ready`: whether the preparation
        succeeded. Raises ValueError if the worker was not asked for this key."""
        kind = self._shared if key in self._shared.pending else self._single
        preparation = kind.pending.pop(key, None)
        if preparation is None:
            raise ValueError("the worker answered for a preparation that it was not asked for")
        if is_ready:
            kind.is_now_ready(key)
        return preparation

    def use_up(self, preparation: Preparation) -> None:
        """Forgets that a preparation for a single sequence is ready, because the sequence starts with it."""
        self._kind(preparation).ready.pop(preparation.key, None)

    def forget_worker(self) -> list[Preparation]:
        """Forgets all preparations, because the next worker has made none of them. Returns those that were not ready:
        of each kind, first the pending ones in the order in which they were requested, then the backlog."""
        self._wanted.clear()
        return [*self._shared.forget(), *self._single.forget()]
