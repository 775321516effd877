"""A request that came from a router."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.sessions.session import SequenceKey
from services.scheduler.worker_request import WorkerRequest
from shared.stall_moves import StallMoves


@dataclass(frozen=True, slots=True)
class RoutedRequest(WorkerRequest):
    """One choice of a Submit. `key` has the router's session and the router's id of the sequence. `stall_moves`: its
    moves between workers of this scheduler."""

    key: SequenceKey = field()
    stall_moves: StallMoves = field(default_factory=StallMoves, compare=False)
