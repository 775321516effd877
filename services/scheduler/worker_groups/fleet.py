"""The worker groups of one scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.config import SchedulerConfig
from services.scheduler.sessions import SequenceSpans
from services.scheduler.worker_groups.fleet_model import FleetModel
from services.scheduler.worker_groups.worker_group import WorkerGroup
from shared.transport import Connect, GrpcChannel


@dataclass(slots=True)
class Fleet:
    scheduler_id: str
    config: SchedulerConfig
    model: FleetModel = field(default_factory=FleetModel)
    spans: SequenceSpans = field(default_factory=SequenceSpans)
    groups: list[WorkerGroup] = field(default_factory=list)
    connect: Connect = GrpcChannel

    def add_group(self, address: str) -> WorkerGroup:
        """Adds a group for the worker at `address`. The group knows the other groups, because groups take over each
        other's sequences.
        """
        group = WorkerGroup(address, self.scheduler_id, self.config, self.model, self.spans, self.groups, self.connect)
        self.groups.append(group)
        return group

    def least_loaded(self) -> WorkerGroup | None:
        """Returns the least loaded group with a worker. If all workers are lost, returns the group that lost its worker
        last, because a sequence in that group has the most time left before --worker-timeout ends it. Returns None if
        there never was a worker.
        """
        groups = [group for group in self.groups if group.core is not None]
        ready = [group for group in groups if group.ready.is_set()]
        if ready:
            return min(ready, key=lambda group: group.num_unfinished)
        return min(groups, key=lambda group: group.silent_s, default=None)

    @property
    def max_model_len(self) -> int:
        """Number of tokens in the longest sequence that any group takes. Read it only after a worker was claimed."""
        groups = [group.core.config.max_model_len for group in self.groups if group.core is not None]
        return max(groups, default=self.model.info.max_model_len)
