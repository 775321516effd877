"""The core's requests for one router's Submit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from quire.inference.v1 import constraints_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2

from .converters import u32
from .core.request import Preparation
from .served_model import ServedModel
from .session import Owner
from .worker_request import WorkerRequest


@dataclass(frozen=True, slots=True)
class RoutedRequest(WorkerRequest):
    """A request that came from a router."""

    key: Owner = field()


def routed_requests(
    submit: scheduler_pb2.Submit, owners: Items[Owner], model: ServedModel, *, by_priority: bool
) -> list[RoutedRequest]:
    """One request per choice of a checked Submit. `owners`: of the choices. `by_priority`: priorities count."""
    prompt = u32(submit.prompt_token_ids)
    stop_token_ids = set[int]()
    if not submit.HasField("pooling"):
        stop_token_ids.update(submit.stop.stop_token_ids)
    if not submit.stop.ignore_eos:
        stop_token_ids.update(model.info.eos_token_ids)
    pooling, pooling_params = model.pooling(submit.pooling) if submit.HasField("pooling") else (None, None)
    sampling = sampling_pb2.SamplingParams()
    if pooling is None:
        sampling.CopyFrom(submit.sampling)
    constraints, needs = None, None
    if pooling is None and submit.HasField("constraints"):
        constraints = constraints_pb2.TokenConstraints()
        constraints.CopyFrom(submit.constraints)
        if grammar := constraints.grammar:
            needs = Preparation(hashlib.sha256(grammar.encode()).digest(), grammar)
    wants = pooling is None and sampling.HasField("prompt_logprobs")
    sampling_bytes = sampling.ByteSize() + (0 if constraints is None else constraints.ByteSize())
    deadline = time.monotonic() + submit.timeout_ms / 1000 if submit.HasField("timeout_ms") else None
    group = object() if len(submit.choices) > 1 else None
    end_ids = frozenset(stop_token_ids)
    return [
        RoutedRequest(
            key=owner,
            prompt_token_ids=prompt,
            max_tokens=submit.stop.max_tokens if pooling is None else 0,
            stop_token_ids=end_ids,
            output_token_ids=u32(choice.output_token_ids if pooling is None else b""),
            was_accepted=choice.was_accepted,
            num_losses=choice.num_worker_losses,
            choice_index=choice.choice_index,
            num_prompt_logprobs=choice.num_prompt_logprobs if wants and choice.choice_index == 0 else None,
            turn_id=(owner.session.router_id, submit.turn_id) if submit.turn_id else None,
            group=group,
            cache_salt=submit.cache_salt,
            tenant=submit.tenant,
            priority=submit.priority if by_priority else 0,
            sampling=sampling,
            constraints=constraints,
            needs=needs,
            sampling_bytes=sampling_bytes,
            deadline=deadline,
            traceparent=submit.traceparent,
            pooling=pooling,
            pooling_params=pooling_params,
        )
        for owner, choice in zip(owners, submit.choices, strict=True)
    ]
