"""How `LLM` generates, in vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from quire.client.options import Options, options_to_proto

DEFAULT_MAX_TOKENS = 16
# Said even where they are as here, so that they go before the model's own defaults, as in vLLM.
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
# vLLM's other ways to say that something is left out.
_LEFT_OUT = {"top_k": (-1, 0), "seed": (-1, None)}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Names, meanings and defaults are vLLM's; ranges those of quire/inference/v1/sampling.proto. Raises ValueError for
    a value that cannot be used, and for a parameter that is set and that this version does not know how to keep."""

    n: int = 1
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
    # None: as many as the context leaves.
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    # Log probabilities of each token and of this many likeliest ones.
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    structured_outputs: Any = None
    truncate_prompt_tokens: int | None = None
    logits_processors: Any = None
    extra_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.best_of not in (None, self.n):
            raise ValueError("SamplingParams.best_of other than n is not supported")
        for name, value in _given(self).items():
            if name not in Options.__annotations__:
                raise ValueError(f"SamplingParams.{name} is not supported")
            try:
                options_to_proto(cast(Options, {name: value}))
            except (TypeError, ValueError, AttributeError) as error:
                raise ValueError(f"SamplingParams.{name} is {value!r}: {error}") from None
        for name in ("n", "max_tokens"):
            if getattr(self, name) == 0:
                raise ValueError(f"SamplingParams.{name} is 0: use at least 1")

    def options(self) -> Options:
        """As the client takes them."""
        return cast(Options, _given(self))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def _given(params: SamplingParams) -> dict[str, Any]:
    """What differs from its default, or is said in any case."""
    given: dict[str, Any] = {}
    for field in fields(params):
        name, value = field.name, getattr(params, field.name)
        if name in _LEFT_OUT and value == _LEFT_OUT[name][0]:
            value = _LEFT_OUT[name][1]
        if name != "best_of" and value is not None and (name in _SAID or value != field.default):
            given[name] = value
    return given
