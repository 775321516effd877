"""Which scheduler runs a request: connections, placement, submissions, and what comes back."""

from services.router.dispatch.converters import pooling_from_proto, sampling_from_proto, stop_from_proto
from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.placement import Placement
from services.router.dispatch.scheduler_connection import SchedulerConnection
from services.router.dispatch.submission import FinishReason, Mailbox, Sequence, Submission

__all__ = [
    "Deliveries",
    "FinishReason",
    "Mailbox",
    "Placement",
    "SchedulerConnection",
    "Sequence",
    "Submission",
    "pooling_from_proto",
    "sampling_from_proto",
    "stop_from_proto",
]
