"""The numbers of a scheduler's worker groups, and the counters that belong to each number."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from services.scheduler.core import Counters


@dataclass(frozen=True, slots=True)
class Engine:
    """A number with its counters. A group has one while it has a core."""

    index: int
    counters: Counters = field(default_factory=Counters)


class Engines:
    """Gives each group the lowest free number. A group that takes a free number continues the counters of the groups
    that had the number before. So the numbers, which are a label of the metrics, stay below the largest number of
    groups that the scheduler had at a time, and no counter decreases when a worker goes away.
    """

    def __init__(self) -> None:
        self._all: list[Engine] = []
        self._free: list[int] = []

    @property
    def all(self) -> list[Engine]:
        return self._all

    def take(self) -> Engine:
        if self._free:
            return self._all[heapq.heappop(self._free)]
        self._all.append(Engine(len(self._all)))
        return self._all[-1]

    def give_back(self, engine: Engine) -> None:
        heapq.heappush(self._free, engine.index)
