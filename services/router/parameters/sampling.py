"""Sampling parameters and stop conditions of a request, in a form that depends neither on the API nor on the
scheduler's protos."""

from __future__ import annotations

import dataclasses
import secrets
from array import array
from dataclasses import dataclass

from services.router.errors import invalid
from shared.sampling_ranges import BIAS_RANGE, MAX_LOGPROBS, RANGES, Range

MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 512


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. Meanings and defaults are as in quire/inference/v1/sampling.proto. None: the client did not
    set the field.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()

    def resolve(self, model_defaults: SamplingParams) -> SamplingParams:
        """Returns a copy with every field set, except those for log probabilities. Fields that the client has not set
        get the model's default, or the API's default if the model has none. A missing seed is drawn at random."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        for name, default in _DEFAULTS.items():
            if values[name] is None:
                from_model = getattr(model_defaults, name)
                values[name] = default if from_model is None else from_model
        seed = secrets.randbits(64) if self.seed is None else self.seed
        return dataclasses.replace(self, seed=seed, **values)


_DEFAULTS: dict[str, float | int] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}

# Clients can send a `top_p` of 0, which schedulers and workers refuse. The router submits LEAST_TOP_P in its place
# (dispatch/converters.py).
_RANGES = RANGES | {"top_p": Range(0, 1)}


@dataclass(frozen=True, slots=True)
class StopConditions:
    """Conditions that end the output. If `max_tokens` is None, the output can fill the rest of the context."""

    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    # Number of tokens that the output must have before an end token or a stop string can end it.
    min_tokens: int = 0

    def end_token_ids(self, eos_token_ids: frozenset[int]) -> frozenset[int]:
        """Returns the ids of all tokens that end the output. `eos_token_ids`: the model's own end tokens."""
        own = frozenset(self.stop_token_ids)
        return own if self.ignore_eos else own | eos_token_ids


def check_ranges(sampling: SamplingParams, path: str = "") -> SamplingParams:
    """Returns the parameters with floats rounded to single precision, as the protos have them. Raises ApiError, naming
    the field, if a value is out of range. The rounded values are checked because schedulers receive those: a
    `repetition_penalty` of 1e-50 would arrive as 0."""
    rounded: dict[str, float] = {}
    for name, allowed in _RANGES.items():
        given = getattr(sampling, name)
        if given is None:
            continue
        value = _single(given) if isinstance(given, float) else given
        if value not in allowed:
            bounds = f"{'over' if allowed.above_low else 'at least'} {allowed.low:g} and at most {allowed.high:g}"
            raise invalid(f"Invalid '{path}{name}': expected a value of {bounds}, but got {given}.", path + name)
        if isinstance(given, float):
            rounded[name] = value
    for _, bias in sampling.logit_bias:
        if bias not in BIAS_RANGE:
            raise invalid(
                f"Invalid '{path}logit_bias': expected biases from -100 to 100, but got {bias}.", path + "logit_bias"
            )
    if sampling.logprob_token_ids and sampling.logprobs is None:
        rounded["logprobs"] = 0
    # Without duplicates, because each token's log probability is reported once.
    given = tuple(dict.fromkeys(sampling.logprob_token_ids))
    biases = tuple((token_id, _single(bias)) for token_id, bias in sampling.logit_bias)
    return dataclasses.replace(sampling, logit_bias=biases, logprob_token_ids=given, **rounded)  # type: ignore[arg-type]  # names known at run time


def _single(value: float) -> float:
    """Returns the nearest float32; infinity if the value is too large."""
    return array("f", (value,))[0]


def check_token_ids(sampling: SamplingParams, stop: StopConditions, vocab_size: int, path: str = "") -> None:
    """Raises ApiError if a list is too long or an id is outside the model's vocabulary."""
    for name, ids, limit in (
        ("logit_bias", [token_id for token_id, _ in sampling.logit_bias], MAX_LOGIT_BIAS),
        ("stop_token_ids", stop.stop_token_ids, MAX_STOP_TOKEN_IDS),
        ("logprob_token_ids", sampling.logprob_token_ids, MAX_LOGPROBS),
    ):
        param = path + name
        if len(ids) > limit:
            raise invalid(f"Invalid '{param}': at most {limit} tokens may be listed, but got {len(ids)}.", param)
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise invalid(
                    f"Invalid '{param}': token id {token_id} is out of range; the model has {vocab_size} tokens.", param
                )


def check_stop_strings(stops: tuple[str, ...], param: str) -> None:
    """Raises ApiError if there are too many stop strings, or if one is empty or too long."""
    if len(stops) > MAX_STOP_STRINGS:
        raise invalid(f"Invalid '{param}': at most {MAX_STOP_STRINGS} stop strings, but got {len(stops)}.", param)
    for stop in stops:
        if not stop:
            raise invalid(f"Invalid '{param}': a stop string must not be empty.", param)
        if len(stop) > MAX_STOP_STRING_CHARS:
            raise invalid(
                f"Invalid '{param}': a stop string may have at most {MAX_STOP_STRING_CHARS} characters.", param
            )
