"""Queues of the sequences that wait to start."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic

from services.scheduler.core.request import RequestT
from services.scheduler.core.sequence import Sequence, StartRank

# Approximate maximum number of tenants without a waiting sequence that the queue remembers.
_MAX_IDLE_TENANTS = 1024

Entry = tuple[StartRank, Sequence[RequestT]]


class RankedQueue(Generic[RequestT]):
    """Orders sequences by priority, turn and arrival. Every operation takes at most logarithmic time, because a
    sequence that is removed from the middle stays in its heap, and is skipped when it comes to the front.
    """

    def __init__(self) -> None:
        # One heap for the first sequence of each request, and one for all other sequences.
        self._heaps: tuple[list[Entry[RequestT]], list[Entry[RequestT]]] = ([], [])
        self._members: dict[int, Sequence[RequestT]] = {}  # by arrival

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence[RequestT]]:
        return iter(self._members.values())

    def push(self, sequence: Sequence[RequestT]) -> None:
        self._members[sequence.arrival] = sequence
        heapq.heappush(self._heaps[not sequence.turn.is_first], (sequence.start_rank, sequence))

    def first(self, only_first: bool = False) -> Sequence[RequestT] | None:
        """Returns the sequence at the front of the queue. With `only_first`, skips sequences that are not the first of
        their request (`Turn.is_first`). Returns None if there is none."""
        entries = []
        for heap in self._heaps[:1] if only_first else self._heaps:
            while heap and self._members.get(heap[0][1].arrival) is not heap[0][1]:
                heapq.heappop(heap)
            entries += heap[:1]
        return min(entries)[1] if entries else None

    def remove(self, sequence: Sequence[RequestT]) -> None:
        del self._members[sequence.arrival]
        heap = self._heaps[not sequence.turn.is_first]
        if heap[0][1] is sequence:
            heapq.heappop(heap)
        elif len(heap) > 2 * len(self._members) + 64:
            heap[:] = [entry for entry in heap if self._members.get(entry[1].arrival) is entry[1]]
            heapq.heapify(heap)

    def serve(self, sequence: Sequence[RequestT], num_tokens: int) -> None:
        """Does nothing, because the order of this queue does not depend on the tokens served. Only FairQueue needs the
        call."""


class FairQueue(Generic[RequestT]):
    """Serves the tenant that has received the fewest tokens first. Orders a tenant's sequences as RankedQueue does.

    It uses virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, algorithm 2).
    Each tenant has a count of the tokens that it has received. When a tenant comes back after a pause, its count is
    raised to at least the lowest count of all waiting tenants or, if no tenant waits, to the count of the last tenant
    that waited. So a tenant cannot save up tokens during a pause. Every operation takes logarithmic time, because a
    tenant whose count has grown is moved to its right place in line only when it reaches the front.
    """

    def __init__(self) -> None:
        self._queues: dict[str, RankedQueue[RequestT]] = {}
        self._num_served: dict[str, int] = {}
        # (tokens served when the tenant was put in line, tenant). Each tenant is in line at most once, and can stay in
        # line for some time after its last waiting sequence has left.
        self._line: list[tuple[int, str]] = []
        self._in_line: set[str] = set()
        self._num_waiting = 0
        self._last_tenant = ""  # the tenant whose last waiting sequence left the queue most recently

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence[RequestT]]:
        for queue in self._queues.values():
            yield from queue

    def push(self, sequence: Sequence[RequestT]) -> None:
        tenant = sequence.request.tenant
        if tenant not in self._queues:
            least = self._first_tenant() if self._num_waiting else self._last_tenant
            floor = self._num_served.get(least, 0)
            self._forget_idle(floor)
            self._queues[tenant] = RankedQueue()
            self._num_served[tenant] = max(self._num_served.get(tenant, 0), floor)
            if tenant not in self._in_line:
                self._in_line.add(tenant)
                heapq.heappush(self._line, (self._num_served[tenant], tenant))
        self._queues[tenant].push(sequence)
        self._num_waiting += 1

    def first(self, only_first: bool = False) -> Sequence[RequestT] | None:
        """Returns the sequence at the front of the queue. With `only_first`, skips sequences that are not the first of
        their request (`Turn.is_first`). Returns None if there is none."""
        if not self._num_waiting:
            return None
        if not only_first:
            return self._queues[self._first_tenant()].first()
        # This loop over all tenants is rarely needed: only if the free slots are all reserved for first sequences.
        for tenant in sorted(self._queues, key=self._num_served.__getitem__):
            if (sequence := self._queues[tenant].first(only_first=True)) is not None:
                return sequence
        return None

    def remove(self, sequence: Sequence[RequestT]) -> None:
        tenant = sequence.request.tenant
        queue = self._queues[tenant]
        queue.remove(sequence)
        self._num_waiting -= 1
        if not queue:
            del self._queues[tenant]
            self._last_tenant = tenant

    def serve(self, sequence: Sequence[RequestT], num_tokens: int) -> None:
        """Adds `num_tokens` tokens, computed for the sequence, to the count of the sequence's tenant."""
        tenant = sequence.request.tenant
        self._num_served[tenant] = self._num_served.get(tenant, 0) + num_tokens

    def _first_tenant(self) -> str:
        while True:
            num_served, tenant = self._line[0]
            if tenant not in self._queues:
                heapq.heappop(self._line)
                self._in_line.remove(tenant)
            elif num_served == self._num_served[tenant]:
                return tenant
            else:
                heapq.heapreplace(self._line, (self._num_served[tenant], tenant))

    def _forget_idle(self, floor: int) -> None:
        """Forgets tenants that have no waiting sequence and a count of at most `floor`, if many tenants are remembered.
        If such a tenant comes back, its count begins at `floor` or higher anyway."""
        if len(self._num_served) > 2 * len(self._queues) + _MAX_IDLE_TENANTS:
            self._num_served = {
                tenant: count for tenant, count in self._num_served.items() if count > floor or tenant in self._queues
            }
