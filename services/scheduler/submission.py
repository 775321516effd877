"""Converts a router's Submit message into requests for the scheduler's core."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Items
from typing import NamedTuple

from quire.inference.v1 import constraints_pb2, pooling_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.converters import u32
from services.scheduler.core import EXIT_ALONE, Generate, Preparation, Work
from services.scheduler.sessions import RoutedRequest, SequenceKey
from services.scheduler.worker_groups import FleetModel
from shared import clock


def routed_requests(
    submit: scheduler_pb2.Submit, keys: Items[SequenceKey], model: FleetModel, *, by_priority: bool
) -> list[RoutedRequest]:
    """Makes one request per choice of a checked Submit. `keys`: one per choice. `by_priority`: if False, every
    request gets priority 0, whatever the client sent."""
    is_pooled = submit.HasField("pooling") or submit.HasField("classification")
    task = _pool(submit, model) if is_pooled else _generate(submit, model)
    prompt = u32(submit.prompt_token_ids)
    wants_prompt_logprobs = task.sampling.HasField("prompt_logprobs")
    deadline = clock.now() + submit.timeout_ms / 1000 if submit.HasField("timeout_ms") else None
    group = object() if len(submit.choices) > 1 else None
    needs, num_bytes = task.preparation, task.num_bytes
    return [
        RoutedRequest(
            key=key,
            prompt_token_ids=prompt,
            work=task.work,
            output_token_ids=u32(choice.output_token_ids),
            was_accepted=choice.was_accepted,
            suspicion=min(choice.num_worker_losses, EXIT_ALONE),
            choice_index=choice.choice_index,
            num_prompt_logprobs=(
                choice.num_prompt_logprobs if wants_prompt_logprobs and choice.choice_index == 0 else None
            ),
            turn_id=(key.session.router_id, submit.turn_id) if submit.turn_id else None,
            group=group,
            cache_salt=submit.cache_salt,
            tenant=submit.tenant,
            priority=submit.priority if by_priority else 0,
            sampling_bytes=num_bytes,
            needs=needs,
            deadline=deadline,
            sampling=task.sampling,
            constraints=task.constraints,
            pooling=task.pooling,
            classification=task.classification,
            traceparent=submit.traceparent,
            request_id=submit.request_id,
        )
        for key, choice in zip(keys, submit.choices, strict=True)
    ]


class _Task(NamedTuple):
    """What a Submit asks for: `work` for the core, the other fields for the worker. The worker's fields are copies, so
    that the Submit can be freed.
    """

    work: Work
    sampling: sampling_pb2.SamplingParams
    constraints: constraints_pb2.TokenConstraints | None = None
    pooling: pooling_pb2.PoolingParams | None = None
    classification: pooling_pb2.ClassificationParams | None = None

    @property
    def preparation(self) -> Preparation | None:
        """The grammar that the worker must compile before the sequences are planned."""
        if self.constraints is None or not self.constraints.grammar:
            return None
        grammar = self.constraints.grammar
        return Preparation(hashlib.sha256(grammar.encode()).digest(), grammar)

    @property
    def num_bytes(self) -> int:
        """Number of bytes that the sampling parameters, constraints and pooling take in a message to the worker."""
        parts = (self.sampling, self.constraints, self.pooling, self.classification)
        return sum(part.ByteSize() for part in parts if part is not None)


def _generate(submit: scheduler_pb2.Submit, model: FleetModel) -> _Task:
    stop_token_ids = set(submit.stop.stop_token_ids)
    if not submit.stop.ignore_eos:
        stop_token_ids.update(model.info.eos_token_ids)
    sampling = sampling_pb2.SamplingParams()
    sampling.CopyFrom(submit.sampling)
    constraints = None
    if submit.HasField("constraints"):
        constraints = constraints_pb2.TokenConstraints()
        constraints.CopyFrom(submit.constraints)
    return _Task(Generate(submit.stop.max_tokens, frozenset(stop_token_ids)), sampling, constraints)


def _pool(submit: scheduler_pb2.Submit, model: FleetModel) -> _Task:
    if submit.HasField("classification"):
        classification = pooling_pb2.ClassificationParams()
        classification.CopyFrom(submit.classification)
        return _Task(model.pool, sampling_pb2.SamplingParams(), classification=classification)
    pooling = pooling_pb2.PoolingParams()
    pooling.CopyFrom(submit.pooling)
    return _Task(model.pool, sampling_pb2.SamplingParams(), pooling=pooling)
