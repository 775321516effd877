"""Every sampling field is set before it leaves the router."""

from __future__ import annotations

import math

import pytest

from services.router.dispatch.converters import LEAST_TOP_P, sampling_from_proto, sampling_to_proto
from services.router.errors import ApiError
from services.router.parameters.sampling import SamplingParams, StopConditions, check_ranges, check_token_ids
from services.worker.plan.sampling_params import SamplingParams as WorkerParams


def test_the_client_comes_before_the_model_and_the_model_before_the_default() -> None:
    defaults = SamplingParams(temperature=0.7, top_k=50)
    resolved = SamplingParams(temperature=0.0).resolve(defaults)
    assert resolved.temperature == 0.0
    assert resolved.top_k == 50
    assert resolved.top_p == 1.0
    assert resolved.repetition_penalty == 1.0


def test_a_seed_is_drawn_where_none_is_named() -> None:
    assert SamplingParams(seed=0).resolve(SamplingParams()).seed == 0
    seeds = {SamplingParams().resolve(SamplingParams()).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(seed is not None and 0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 9.0),
        ("temperature", math.nan),
        ("top_p", -0.1),
        ("top_p", 1.5),
        # 0 in single precision, which is what arrives at the worker.
        ("repetition_penalty", 1e-50),
        ("temperature", 1e300),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 100.5),
        ("presence_penalty", math.inf),
        ("frequency_penalty", -3.0),
        ("logprobs", 21),
    ],
)
def test_values_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ApiError) as caught:
        check_ranges(SamplingParams(**{name: value}), "options.")  # type: ignore[arg-type]
    assert caught.value.param == f"options.{name}"


def test_values_are_what_the_wire_makes_of_them() -> None:
    given = SamplingParams(temperature=1e-50, top_p=0.7, logit_bias=((3, 0.1),))
    checked = check_ranges(given)
    assert checked.temperature == 0.0
    assert sampling_from_proto(sampling_to_proto(checked)) == checked


@pytest.mark.parametrize("top_p", [0.0, 1e-50, 1e-20])
def test_no_top_p_is_so_small_that_the_worker_refuses_it(top_p: float) -> None:
    message = sampling_to_proto(check_ranges(SamplingParams(top_p=top_p)))
    assert message.top_p == LEAST_TOP_P
    assert WorkerParams(top_p=message.top_p).check(vocab_size=1) is None


def test_tokens_that_the_model_does_not_have_are_named() -> None:
    check_token_ids(SamplingParams(logit_bias=((99, 1.0),)), StopConditions(stop_token_ids=(0,)), 100)
    with pytest.raises(ApiError, match="token id 100 is out of range; the model has 100 tokens"):
        check_token_ids(SamplingParams(logit_bias=((100, 1.0),)), StopConditions(), 100)
    with pytest.raises(ApiError, match="token id -1 is out of range"):
        check_token_ids(SamplingParams(), StopConditions(stop_token_ids=(-1,)), 100)


def test_tokens_that_are_named_are_reported_once_each() -> None:
    checked = check_ranges(SamplingParams(logprob_token_ids=(5, 3, 5)))
    assert (checked.logprobs, checked.logprob_token_ids) == (0, (5, 3))
    assert sampling_from_proto(sampling_to_proto(checked)) == checked
    with pytest.raises(ApiError, match="'logprob_token_ids': token id 100 is out of range"):
        check_token_ids(SamplingParams(logprob_token_ids=(100,)), StopConditions(), 100)
