"""The worker groups of one scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.scheduler.config import SchedulerConfig
from services.scheduler.sessions import SequenceKey, SequenceSpans
from services.scheduler.worker_groups.accusations import Accusations
from services.scheduler.worker_groups.balance import gives_away
from services.scheduler.worker_groups.engines import Engines
from services.scheduler.worker_groups.fleet_model import FleetModel
from services.scheduler.worker_groups.outputs import report
from services.scheduler.worker_groups.progress import SLOW, Overseer
from services.scheduler.worker_groups.worker_group import WorkerGroup


@dataclass(slots=True)
class Fleet:
    """`groups`: a group for each worker that the scheduler has claimed or might claim."""

    scheduler_id: str
    config: SchedulerConfig
    model: FleetModel = field(init=False)
    spans: SequenceSpans = field(default_factory=SequenceSpans)
    groups: list[WorkerGroup] = field(default_factory=list)
    engines: Engines = field(default_factory=Engines)
    accusations: Accusations = field(init=False)
    # Whether the scheduler is stopping: it claims no worker any more.
    is_draining: bool = False
    # Called after a worker was claimed or lost.
    on_change: Callable[[], None] = lambda: None
    # Workers lost by groups that were removed.
    _num_lost_before: int = 0
    _overseer: Overseer = field(default_factory=Overseer)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.model = FleetModel(self.config.worker_model)
        self.accusations = Accusations(self.config.worker_timeout, self._suspicion_of)

    def add_group(self, address: str) -> WorkerGroup:
        """Adds a group for the worker at `address`. The group knows the other groups, because groups take over each
        other's sequences.
        """
        group = WorkerGroup(
            *(address, self.config, self.model, self.spans, self.engines, self.accusations, self.groups),
            on_change=self._on_change,
            gives_away=self._gives_away,
        )
        self.groups.append(group)
        return group

    def remove_group(self, group: WorkerGroup) -> None:
        """Removes a group that has neither a worker nor sequences."""
        group.forget_worker()
        self.groups.remove(group)
        self._num_lost_before += group.num_lost

    def least_loaded(self) -> WorkerGroup | None:
        """Returns the least loaded group with a worker. If all workers are lost, returns the group that lost its worker
        last, because a sequence in that group has the most time left before --worker-timeout ends it. Returns None if
        no worker was claimed yet, or other schedulers hold all of them.
        """
        groups = [group for group in self.groups if group.core is not None]
        ready = [group for group in groups if group.ready.is_set()]
        ready = [group for group in ready if group.is_healthy] or ready
        if ready:
            return min(ready, key=lambda group: group.num_unfinished)
        return min(groups, key=lambda group: group.steps.silent_s, default=None)

    async def wait_ready(self) -> None:
        """Waits until a group has a worker."""
        while not self.num_ready:
            await self._changed.wait()

    def tick(self, now: float) -> None:
        """Passes the time on to the groups, and gives up a worker that makes no progress. Call it every 100 ms."""
        for group in self.groups:
            group.tick(now)
        given_up, offers = self._overseer.judge(now, self.groups)
        if given_up is not None:
            given_up.give_up()
        for group, asks_peers in offers:
            if asks_peers:
                group.relieve(now)
            group.offer()
        report(self.accusations.judge(now), self.spans)

    def abort(self, key: SequenceKey) -> None:
        """Ends a sequence, wherever it is."""
        if not self.accusations.abort(key):
            any(group.abort(key) for group in self.groups)

    @property
    def is_struggling(self) -> bool:
        """Whether several workers send nothing at once, so that this scheduler itself may be the cause, or sequences
        stand still at one that is not given up yet."""
        return self._overseer.suspects_itself or any(one.num_unfinished for one in self.groups if one.silence > 1.0)

    @property
    def is_slow(self) -> bool:
        """Whether a group has sent nothing for more than half of the time after which it is late."""
        return any(group.silence > SLOW for group in self.groups)

    @property
    def max_model_len(self) -> int:
        """Number of tokens in the longest sequence that any group takes. Read it only after a worker was claimed."""
        groups = [group.core.config.max_model_len for group in self.groups if group.core is not None]
        return max(groups, default=self.model.info.max_model_len)

    @property
    def num_ready(self) -> int:
        """Number of groups that have a worker."""
        return sum(group.ready.is_set() for group in self.groups)

    @property
    def num_lost(self) -> int:
        """How often a worker was lost."""
        return self._num_lost_before + sum(group.num_lost for group in self.groups)

    def _suspicion_of(self, key: SequenceKey) -> int | None:
        found = (group.core.suspicion_of(key) for group in self.groups if group.core is not None)
        return next((suspicion for suspicion in found if suspicion is not None), None)

    def _gives_away(self, num_groups_of_contender: int, is_idle: bool) -> bool:
        return gives_away(self.num_ready, num_groups_of_contender, is_draining=self.is_draining, is_idle=is_idle)

    def _on_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()
