"""vLLM's sampling parameters: which are kept, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from quire import SamplingParams
from quire.client.options import Options, options_to_proto

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
        "skip_special_tokens": False,
    }
    params = SamplingParams(**given)

    assert params.options() == given
    assert params.stop_strings == ("x", "y")
    message = options_to_proto(params.options())
    assert (message.sampling.seed, message.sampling.logprobs, message.n) == (0, 0, 2)
    assert message.sampling.HasField("seed")
    assert not message.skip_special_tokens
    assert message.HasField("skip_special_tokens")


def test_vllms_other_words_for_nothing() -> None:
    assert SamplingParams(top_k=-1, seed=-1, best_of=1, stop=None).options() == DEFAULTS
    assert "max_tokens" not in SamplingParams(max_tokens=None).options()


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 0), ("n", -1), ("max_tokens", 0), ("max_tokens", 2**40), ("logprobs", -1), ("top_k", -2),
     ("temperature", "hot"), ("seed", 2**70), ("stop_token_ids", [-1]), ("stop", 3), ("logit_bias", {"x": 1})],
)  # fmt: skip
def test_a_value_that_cannot_be_sent_is_told_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^SamplingParams\.{name} is "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", 2), ("spaces_between_special_tokens", False), ("detokenize", False), ("logits_processors", [1]),
     ("truncate_prompt_tokens", 4), ("extra_args", {"x": 1})],
)  # fmt: skip
def test_what_is_not_kept_is_refused_by_name(name: str, value: Any) -> None:
    assert name not in Options.__annotations__
    with pytest.raises(ValueError, match=rf"^SamplingParams\.{name} .*is not supported$"):
        SamplingParams(**{name: value})


def test_what_vllm_does_not_know_is_no_parameter() -> None:
    with pytest.raises(TypeError, match="max_new_tokens"):
        SamplingParams(max_new_tokens=3)  # type: ignore[call-arg]
