"""Dispatch of requests to schedulers: connections, placement, submissions, and the delivery of results."""

from services.router.dispatch.converters import pooling_from_proto, sampling_from_proto, stop_from_proto
from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.model_directory import ListedModel, ModelDirectory
from services.router.dispatch.placement import Placement
from services.router.dispatch.scheduler_connection import SchedulerConnection
from services.router.dispatch.submission import Mailbox, Submission, SubmittedSequence, new_turn_id
from services.router.dispatch.work import FinishReason, Generate, Pool

__all__ = [
    "Deliveries",
    "FinishReason",
    "Generate",
    "ListedModel",
    "Mailbox",
    "ModelDirectory",
    "Placement",
    "Pool",
    "SchedulerConnection",
    "Submission",
    "SubmittedSequence",
    "new_turn_id",
    "pooling_from_proto",
    "sampling_from_proto",
    "stop_from_proto",
]
