"""A request that came from a router."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.sessions.session import SequenceKey
from services.scheduler.worker_request import WorkerRequest


@dataclass(frozen=True, slots=True)
class RoutedRequest(WorkerRequest):
    """One choice of a Submit. `key` has the router's session and the router's id of the sequence."""

    key: SequenceKey = field()
