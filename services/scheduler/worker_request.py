"""Requests with the fields that only the worker reads, and not the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from quire.inference.v1 import constraints_pb2, pooling_pb2, sampling_pb2
from services.scheduler.core import SequenceRequest


@dataclass(frozen=True, slots=True)
class WorkerRequest(SequenceRequest):
    """A request with the fields that go to the worker beside its tokens."""

    sampling: sampling_pb2.SamplingParams = field(default_factory=sampling_pb2.SamplingParams)
    constraints: constraints_pb2.TokenConstraints | None = None
    pooling: pooling_pb2.PoolingParams | None = None
    traceparent: str = ""


WorkerRequestT = TypeVar("WorkerRequestT", bound=WorkerRequest)
