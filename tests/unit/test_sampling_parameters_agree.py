"""A sampling parameter has one name and one default in every layer that it passes."""

from __future__ import annotations

import dataclasses

from quire.client.options import Options
from quire.inference.v1 import sampling_pb2
from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.parameters.sampling import SamplingParams as RouterParams
from services.worker.plan.sampling_params import SamplingParams as WorkerParams
from shared.sampling_ranges import RANGES

PROTO = {field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields}


def test_the_names_are_those_of_the_proto() -> None:
    assert {field.name for field in dataclasses.fields(RouterParams)} == PROTO
    assert {field.name for field in dataclasses.fields(WorkerParams)} == PROTO
    assert Options.__annotations__.keys() >= PROTO
    assert ChatCompletionRequest.model_fields.keys() >= PROTO


def test_what_the_router_fills_in_is_what_the_worker_takes_for_granted() -> None:
    filled = RouterParams(seed=0).resolve(RouterParams())
    assert dataclasses.asdict(filled) == dataclasses.asdict(WorkerParams())


def test_every_number_has_a_range() -> None:
    """The scheduler and the worker check numbers by RANGES alone. A seed may be any; lists have checks of their own."""
    assert RANGES.keys() == PROTO - {"seed", "logit_bias", "logprob_token_ids"}
