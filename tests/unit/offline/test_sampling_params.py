"""vLLM's sampling parameters: which are kept, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from quire import PoolingParams, SamplingParams, StructuredOutputsParams
from quire.client.options import Options, options_to_proto
from quire.offline.sampling_params import checked_copies

DEFAULTS = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "max_tokens": 16,
}


def test_what_is_left_out_is_vllms_default_and_not_the_models() -> None:
    assert SamplingParams().options() == DEFAULTS


def test_everything_that_is_set_arrives() -> None:
    given: dict[str, Any] = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {7: 1.5},
        "seed": 0,
        "max_tokens": 3,
        "stop": ["x", "y"],
        "stop_token_ids": [9],
        "ignore_eos": True,
        "logprobs": 0,
        "prompt_logprobs": 2,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "min_tokens": 2,
        "allowed_token_ids": [1, 2],
        "bad_words": ["bad"],
        "truncate_prompt_tokens": -1,
    }
    params = SamplingParams(**given)

    assert params.options() == given
    message = options_to_proto(params.options())
    assert message.include_stop_str_in_output
    assert (message.truncate_prompt_tokens, message.stop.min_tokens, message.sampling.prompt_logprobs) == (-1, 2, 2)
    assert (list(message.bad_words), list(message.allowed_token_ids)) == (["bad"], [1, 2])
    assert (message.sampling.seed, message.sampling.logprobs, message.n) == (0, 0, 2)
    assert message.sampling.HasField("seed")
    assert not message.skip_special_tokens
    assert message.HasField("skip_special_tokens")


def test_vllms_other_words_for_nothing() -> None:
    assert SamplingParams(top_k=-1, seed=-1, best_of=1, stop=None).options() == DEFAULTS
    assert SamplingParams(output_kind=2, stream_interval=4, spaces_between_special_tokens=False).options() == DEFAULTS
    assert "max_tokens" not in SamplingParams(max_tokens=None).options()


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 0), ("n", -1), ("max_tokens", 0), ("max_tokens", 2**40), ("logprobs", -1), ("top_k", -2),
     ("temperature", "hot"), ("seed", 2**70), ("stop_token_ids", [-1]), ("stop", 3), ("logit_bias", {"x": 1}),
     ("best_of", 0), ("best_of", "two"), ("allowed_token_ids", []), ("structured_outputs", "json"),
     ("structured_outputs", {"jsn": {}}), ("structured_outputs", {"choice": 3})],
)  # fmt: skip
def test_a_value_that_cannot_be_sent_is_told_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^SamplingParams\.{name} is "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", 2.1), ("temperature", float("nan")), ("top_p", 1.1), ("top_p", -0.1),
     ("min_p", 2), ("repetition_penalty", 0), ("repetition_penalty", 1e-50), ("presence_penalty", 2.5),
     ("frequency_penalty", -3), ("logprobs", 21), ("prompt_logprobs", 21), ("logit_bias", {1: 101.0}),
     ("logit_bias", dict.fromkeys(range(1025), 1.0)), ("stop_token_ids", list(range(257))), ("stop", ["x"] * 17),
     ("stop", ""), ("stop", "x" * 513), ("n", 129), ("best_of", 129), ("truncate_prompt_tokens", 0),
     ("truncate_prompt_tokens", -2), ("min_tokens", 17)],
)  # fmt: skip
def test_a_value_out_of_the_apis_range_is_told_where_it_is_set(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^SamplingParams\.{name} is "):
        SamplingParams(**{name: value})


def test_the_ends_of_the_ranges_are_in_them() -> None:
    least: dict[str, Any] = {"temperature": 0, "top_p": 0, "presence_penalty": -2, "logit_bias": {1: -100}, "n": 1}
    most: dict[str, Any] = {"temperature": 2, "top_p": 1, "min_p": 1, "repetition_penalty": 100, "logprobs": 20,
                            "stop": ["x" * 512] * 16, "n": 128, "min_tokens": 16, "best_of": 128}  # fmt: skip
    assert SamplingParams(**least).n == 1
    assert SamplingParams(**most).num_candidates == 128


def test_fields_may_be_set_later() -> None:
    params = SamplingParams()
    params.max_tokens, params.temperature = 3, 0
    assert params.options() == {**DEFAULTS, "max_tokens": 3, "temperature": 0}


def test_what_was_set_later_is_checked_when_it_is_used() -> None:
    params = SamplingParams()
    one, none, other = checked_copies([params, None, params])
    params.temperature = 9

    assert none is None
    assert one is other
    assert one == SamplingParams()
    with pytest.raises(ValueError, match=r"^SamplingParams\.temperature is 9"):
        checked_copies([params])


@pytest.mark.parametrize(
    ("name", "value"),
    [("extra_args", {"x": 1}), ("flat_logprobs", True), ("guided_decoding", object()), ("logits_processors", [1]),
     ("prompt_logprob_start", 3), ("prompt_logprob_token_ids", [1]),
     ("repetition_detection", object()), ("skip_reading_prefix_cache", True), ("thinking_token_budget", 9),
     ("trace_decode_token_ids", [1])],
)  # fmt: skip
def test_what_is_not_kept_is_refused_by_name(name: str, value: Any) -> None:
    assert name not in Options.__annotations__
    with pytest.raises(ValueError, match=rf"^SamplingParams\.{name} .*is not supported$"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"json": {"type": "object"}}, {"json_schema": {"type": "object"}}),
        ({"json": {}}, {"json_schema": {}}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, {"choices": ["a", "b"]}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
    ],
)
def test_structures_are_the_clients(given: Any, option: dict[str, Any]) -> None:
    for structure in (given, StructuredOutputsParams(**given)):
        options = SamplingParams(structured_outputs=structure).options()
        assert options == DEFAULTS | option
        assert options_to_proto(options).structure.WhichOneof("kind") == next(iter(option))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "needs exactly one of json, json_object, regex, choice, grammar"),
        ({"json": {}, "regex": "a"}, "needs exactly one of"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern is not supported"),
        ({"structural_tag": "{}"}, "structural_tag is not supported"),
    ],
)
def test_an_output_has_one_structure(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        StructuredOutputsParams(**given)


def test_the_best_of_more_are_told_by_their_log_probabilities() -> None:
    options = SamplingParams(n=2, best_of=3).options()
    assert (options["n"], options["logprobs"]) == (3, 0)
    assert SamplingParams(best_of=2, logprobs=4).options()["logprobs"] == 4


def test_strings_are_looked_for_in_text() -> None:
    with pytest.raises(ValueError, match=r"^SamplingParams\.stop needs detokenize"):
        SamplingParams(stop="x", detokenize=False)


@pytest.mark.parametrize(
    ("name", "value"), [("dimensions", -1), ("dimensions", "x"), ("truncate_prompt_tokens", 2**40), ("normalize", "x")]
)
def test_a_pooling_parameter_that_cannot_be_sent_is_told_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^PoolingParams\.{name} is "):
        PoolingParams(**{name: value})


def test_what_vllm_does_not_know_is_no_parameter() -> None:
    with pytest.raises(TypeError, match="max_new_tokens"):
        SamplingParams(max_new_tokens=3)  # type: ignore[call-arg]
