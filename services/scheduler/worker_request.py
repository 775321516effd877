"""Extends the core's requests by fields that the core does not read, but passes on to the worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from quire.inference.v1 import constraints_pb2, pooling_pb2, sampling_pb2
from services.scheduler.core import SequenceRequest


@dataclass(frozen=True, slots=True)
class WorkerRequest(SequenceRequest):
    """A request of the core, with further fields for the worker."""

    sampling: sampling_pb2.SamplingParams = field(default_factory=sampling_pb2.SamplingParams)
    constraints: constraints_pb2.TokenConstraints | None = None
    pooling: pooling_pb2.PoolingParams | None = None
    classification: pooling_pb2.ClassificationParams | None = None
    traceparent: str = ""
    request_id: str = ""  # for the worker's logs and traces


WorkerRequestT = TypeVar("WorkerRequestT", bound=WorkerRequest)
