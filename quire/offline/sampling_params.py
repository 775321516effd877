"""Sampling parameters of `LLM`, with vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from quire.client.options import Options, options_to_proto
from quire.offline.ranges import check_range
from quire.offline.structured_outputs import StructuredOutputsParams, structured_outputs

DEFAULT_MAX_TOKENS = 16
# Parameters that are not sent. `LLM` implements `best_of` and `detokenize` itself. The other three have no effect:
# `output_kind` and `stream_interval` concern streaming, which `LLM` does not do, and Quire never adds spaces between
# special tokens.
_NOT_SENT = frozenset({"best_of", "detokenize"} | {"output_kind", "stream_interval", "spaces_between_special_tokens"})
# Parameters that are sent even with their default value, so that they override the model's own defaults, as in vLLM.
_SAID = frozenset(
    {
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "max_tokens",
    }
)
# Values with which vLLM disables a parameter, and Quire's values for the same: a top_k of -1 becomes 0, and a seed of
# -1 becomes None.
_LEFT_OUT = {"top_k": (-1, 0), "seed": (-1, None)}


@dataclass(kw_only=True)
class SamplingParams:
    """Sampling parameters. Names, meanings and defaults are vLLM's; ranges are those of
    quire/inference/v1/sampling.proto. Raises ValueError for an invalid value and for a parameter that Quire does not
    support. A program can change the fields at any time: each call of `LLM` copies the object and checks the copy."""

    n: int = 1
    # Number of outputs to generate. The n outputs with the highest log probability per token are returned, best first.
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    # 0 and -1 keep all tokens.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    # None: as many as fit into the context.
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    # At each position, the log probabilities of this many most likely tokens are returned, in addition to that of the
    # output token.
    logprobs: int | None = None
    # Like `logprobs`, but for the prompt's tokens, from the second on.
    prompt_logprobs: int | None = None
    # With `logprobs`: ids of the tokens whose log probabilities are returned, instead of the most likely tokens'.
    logprob_token_ids: Sequence[int] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    # False: outputs have no text, and log probabilities have no decoded tokens.
    detokenize: bool = True
    allowed_token_ids: Sequence[int] | None = None
    # Strings that the output must not contain.
    bad_words: Sequence[str] | None = None
    # Also accepts a mapping with the fields of StructuredOutputsParams.
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    # Maximum number of prompt tokens; longer prompts lose their beginning. -1: as many as leave room for the answer.
    truncate_prompt_tokens: int | None = None
    output_kind: Any = None
    stream_interval: int | None = None
    # Parameters of vLLM that Quire does not support; setting one is an error.
    extra_args: Mapping[str, Any] | None = None
    flat_logprobs: bool = False
    guided_decoding: Any = None
    logits_processors: Any = None
    prompt_logprob_start: int | None = None
    prompt_logprob_token_ids: Sequence[int] | None = None
    repetition_detection: Any = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    trace_decode_token_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Checks all parameters. Raises ValueError."""
        if self.stop and not self.detokenize:
            raise ValueError("SamplingParams.stop needs detokenize=True: stop strings are found in the text")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("SamplingParams.allowed_token_ids is []: leave it out to allow all tokens")
        for name, value in _given(self).items():
            if name not in (*Options.__annotations__, "structured_outputs"):
                raise ValueError(f"SamplingParams.{name} is not supported")
            try:
                options_to_proto(dict([_option(name, value)]))
                check_range(name, value)
            except (TypeError, ValueError, AttributeError) as error:
                raise ValueError(f"SamplingParams.{name} is {value!r}: {error}") from None
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"SamplingParams.min_tokens is {self.min_tokens}: use at most max_tokens, which is {self.max_tokens}"
            )
        if self.best_of is not None:
            if not (isinstance(self.best_of, int) and self.best_of >= self.n):
                raise ValueError(f"SamplingParams.best_of is {self.best_of!r}: use at least n, which is {self.n}")
            try:
                check_range("n", self.best_of)
            except ValueError as error:
                raise ValueError(f"SamplingParams.best_of is {self.best_of}: {error}") from None

    def options(self) -> Options:
        """Returns the parameters as options of quire.client."""
        given = dict(_option(name, value) for name, value in _given(self).items())
        if self.num_candidates > self.n:
            # `LLM` needs the log probabilities of all candidates to choose the best n of them.
            given["n"], given["logprobs"] = self.num_candidates, self.logprobs or 0
        return cast(Options, given)

    @property
    def num_candidates(self) -> int:
        """Number of outputs to generate."""
        return self.n if self.best_of is None else self.best_of


def checked_copies(each: Sequence[SamplingParams | None]) -> list[SamplingParams | None]:
    """Returns a copy of each object, and None in place of None. Raises ValueError if an object has an invalid field.
    Copies are needed because the user's program can change an object while the request runs. An object that occurs
    several times in `each` is copied once."""
    copies = {id(params): replace(params) for params in each if params is not None}
    return [None if params is None else copies[id(params)] for params in each]


def _given(params: SamplingParams) -> dict[str, Any]:
    """Returns the parameters to send: all in _SAID, and all that differ from their default. Leaves out parameters that
    are None or in _NOT_SENT."""
    given: dict[str, Any] = {}
    for field in fields(params):
        name, value = field.name, getattr(params, field.name)
        if name in _LEFT_OUT and value == _LEFT_OUT[name][0]:
            value = _LEFT_OUT[name][1]
        if name not in _NOT_SENT and value is not None and (name in _SAID or value != field.default):
            given[name] = value
    return given


def _option(name: str, value: Any) -> tuple[str, Any]:
    """Returns the name and the value of the quire.client option that sets a parameter. Raises ValueError."""
    return structured_outputs(value).option() if name == "structured_outputs" else (name, value)
