"""Which scheduler a request is sent to."""

from __future__ import annotations

from collections.abc import Iterable

from services.router.dispatch.scheduler_connection import SchedulerConnection
from services.router.dispatch.submission import Submission
from services.router.errors import ErrorKind
from shared.placement import place


def choose(submission: Submission, connections: Iterable[SchedulerConnection]) -> SchedulerConnection | None:
    """Returns the scheduler among `connections` that a submission is sent to; None if none of them can take it. The
    candidates are the model's schedulers that take new work and have not refused the submission. If some candidates
    have workers, the others are left out. If some do not struggle, those that do are left out. The prompt's affinity
    then chooses among the candidates."""
    candidates = [
        connection
        for connection in connections
        if _takes(submission, connection) and connection.has_room and submission.refusals.get(connection) is None
    ]
    candidates = [connection for connection in candidates if connection.has_workers] or candidates
    candidates = [connection for connection in candidates if not connection.is_struggling] or candidates
    if not candidates:
        return None
    nodes = {connection.node: connection for connection in candidates}
    return nodes[place(submission.affinity, submission.outstanding_tokens(submission.sequences), list(nodes))]


def serves(submission: Submission, connection: SchedulerConnection) -> bool:
    """Returns whether the scheduler serves the submission's model with enough context; schedulers of one model can have
    contexts of different lengths."""
    info = connection.info
    return info is not None and info.key == submission.model.key and info.max_model_len >= submission.num_context_tokens


def is_busy_for(submission: Submission, connection: SchedulerConnection) -> bool:
    """Returns whether only a lack of room keeps the scheduler from taking the submission."""
    error = submission.refusals.get(connection)
    return _takes(submission, connection) and (error is None or error.kind is ErrorKind.OVERLOADED)


def may_take(submission: Submission, connection: SchedulerConnection) -> bool:
    """Returns whether a scheduler that has not refused the submission might take it, now or after a reconnect."""
    is_possible = connection.info is None or serves(submission, connection)
    return is_possible and submission.refusals.get(connection) is None


def can_relieve(other: SchedulerConnection, connection: SchedulerConnection) -> bool:
    """Returns whether the other scheduler can take over sequences of `connection`, whose workers are lost or silent."""
    has_same_model = connection.info is not None and other.info is not None and connection.info.key == other.info.key
    return other is not connection and has_same_model and other.has_workers and not other.is_draining


def _takes(submission: Submission, connection: SchedulerConnection) -> bool:
    return serves(submission, connection) and not connection.is_draining
