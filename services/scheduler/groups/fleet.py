"""The state that the worker groups of one scheduler share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.scheduler.config import SchedulerConfig
from services.scheduler.groups.fleet_model import FleetModel
from services.scheduler.sessions.spans import SequenceSpans

if TYPE_CHECKING:
    from services.scheduler.core.sequence import Sequence
    from services.scheduler.groups.worker_group import WorkerGroup
    from services.scheduler.submission import RoutedRequest


@dataclass(slots=True)
class Fleet:
    scheduler_id: str
    config: SchedulerConfig
    model: FleetModel = field(default_factory=FleetModel)
    spans: SequenceSpans = field(default_factory=SequenceSpans)
    groups: list[WorkerGroup] = field(default_factory=list)

    def least_loaded(self) -> WorkerGroup | None:
        """The least loaded group with a worker. If all workers are lost, the group that lost its worker last: its
        sequences wait longest before they fail. None if there never was a worker.
        """
        groups = [group for group in self.groups if group.core is not None]
        ready = [group for group in groups if group.ready.is_set()]
        if ready:
            return min(ready, key=lambda group: group.num_unfinished)
        return min(groups, key=lambda group: group.silent_s, default=None)

    @property
    def max_model_len(self) -> int:
        """Number of tokens in the longest sequence that any group takes. Call it only once a group was claimed."""
        groups = [group.core.config.max_model_len for group in self.groups if group.core is not None]
        return max(groups, default=self.model.info.max_model_len)

    def drain_lost(self, but: WorkerGroup) -> list[Sequence[RoutedRequest]]:
        """Removes and returns the sequences that wait for lost workers of other groups than `but` to come back, except
        those that do not fit the context of `but`."""
        others = [group for group in self.groups if group is not but and not group.ready.is_set()]
        return [sequence for group in others if group.core is not None for sequence in group.core.drain(but.core)]
