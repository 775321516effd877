"""Base class of OpenAI's chat and completion bodies.

Unknown fields are ignored; a metric counts them. Known fields that are not implemented and would change the answer are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag, WithJsonSchema

from services.router.apis.openai.structure_fields import StructureFields
from services.router.errors import invalid
from services.router.generation import GenerationOptions
from services.router.http import Body, SamplingFields, string_or_array, union
from services.router.parameters import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    StopConditions,
    Truncation,
    check_stop_strings,
)

# Fields that are not implemented. Each field's tuple lists the values that are accepted besides null, because they have
# no effect.
_NOT_BUILT: dict[str, tuple[object, ...]] = {
    "modalities": (["text"],),
    "moderation": (),
    "audio": (),
    "web_search_options": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "early_stopping": (False,),
    "prompt_embeds": (),
    "logits_processors": ([],),
    "watermarking": (False,),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "return_token_offsets": (False,),
    "return_prompt_text": (False,),
    "mm_payload": (),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
}
# Known fields without effect on the answer.
_WITHOUT_EFFECT = frozenset(
    {"prediction", "prompt_cache_options", "prompt_cache_retention", "functions", "function_call"}
    | {"guided_decoding_backend", "guided_whitespace_pattern"}
    | {"verbosity", "spaces_between_special_tokens", "request_id", "session_id", "stream_interval", "vllm_xargs"}
    | {"routed_experts_prompt_start", "return_mm_kwargs"}
)

# The validation lets -1 pass, which vLLM accepts, so that it gets an error message of its own.
_PromptLogprobs = Annotated[
    int,
    Field(ge=-1, le=MAX_LOGPROBS),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}),
]


class StreamOptions(Body):
    known_extras = frozenset({"include_obfuscation"})

    include_usage: bool | None = Field(
        None, description="Whether the stream has one more chunk before `[DONE]`, with the usage."
    )
    continuous_usage_stats: bool | None = Field(
        None, description="With `include_usage`: whether every chunk has the usage so far."
    )


class GenerationBody(Body, StructureFields, SamplingFields):
    """Fields that chat and completions share."""

    known_extras = _WITHOUT_EFFECT
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = _NOT_BUILT

    model: str | None = Field(
        None, description="Name or alias of a served model. Default: that of `--default-model`, or the only one."
    )
    stream: bool | None = Field(
        None, description="Whether the answer is streamed as server-sent events; the last one is `[DONE]`."
    )
    stream_options: StreamOptions | None = Field(
        None, description="Options for `stream`: `include_usage`, and vLLM's `continuous_usage_stats`."
    )
    n: int | None = Field(
        None, ge=1, le=128, description="Number of answers to generate; the server may allow fewer (`--max-n`)."
    )
    stop: (
        Annotated[
            Annotated[str, Tag("#string")] | Annotated[list[str], Tag("#array")],
            union(string_or_array, "a string or an array of strings"),
        ]
        | None
    ) = Field(
        None,
        description=(
            "Stop strings: one or up to 16, each of at most 512 characters. The first one found ends the answer, "
            "and `stop_reason` in the choice names it."
        ),
    )
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_LOGIT_BIAS)] | None
    ) = Field(None, description="Values to add to tokens' logits, by token id: -100 to 100. At most 1,024.")
    ignore_eos: bool | None = Field(None, description="Whether generation continues after the model's own end tokens.")
    stop_token_ids: list[int] | None = Field(
        None,
        description=(
            "Ids of tokens that end the answer, up to 256. Their text is not part of the answer, and "
            "`stop_reason` is the id."
        ),
    )
    min_tokens: int | None = Field(
        None,
        ge=0,
        lt=2**31,
        description="Minimum number of tokens: end tokens and stop strings do not end the answer earlier.",
    )
    allowed_token_ids: list[int] | None = Field(None, description="Ids of tokens: only these may be sampled.")
    bad_words: list[str] | None = Field(None, description="Strings that the answer must not contain.")
    skip_special_tokens: bool | None = Field(
        None, description="Whether special tokens are left out of the text. Default: true."
    )
    add_special_tokens: bool | None = Field(
        None,
        description=(
            "Whether the tokenizer adds special tokens to the prompt. Default: true for completions; false for "
            "chats, whose templates write them."
        ),
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Requests share cached prefixes only with requests that have the same salt.",
    )
    prompt_cache_key: str | None = Field(
        None, description="Requests with the same key go to the same scheduler, to find their prefixes in its cache."
    )
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="Scheduling priority, if the server schedules by priority; a lower value runs earlier.",
    )
    prompt_logprobs: _PromptLogprobs | None = Field(
        None,
        description=(
            "Number of most likely tokens to return at each position of the prompt, with the log probability of "
            "each prompt token, in vLLM's format. Not with `stream`. -1, the whole vocabulary, is refused. The "
            "prompt is computed without the prefix cache."
        ),
    )
    logprob_token_ids: list[int] | None = Field(
        None,
        min_length=1,
        max_length=MAX_LOGPROBS,
        description=(
            "With `logprobs`: ids of up to 20 tokens whose log probabilities are returned at each position, "
            "instead of the most likely tokens'."
        ),
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="Whether the text includes the stop string or stop token that ended it."
    )
    return_token_ids: bool | None = Field(
        None, description="Whether to return token ids: `token_ids` of each choice, and `prompt_token_ids`."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Whether log probabilities show tokens as `token_id:N` instead of text."
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        description=(
            "Maximum number of prompt tokens; longer prompts are cut. -1: as many as leave room for the answer."
        ),
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None,
        description=(
            "Side on which long prompts are cut: `left`, the beginning, or `right`, the end. Default: `left`."
        ),
    )
    user: str | None = Field(None, description="Validated, but has no effect.")
    safety_identifier: str | None = Field(None, max_length=64, description="Validated, but has no effect.")
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = Field(
        None,
        description=(
            "Up to 16 pairs, with keys of up to 64 and values of up to 512 characters. Validated, but has no "
            "effect: nothing is stored."
        ),
    )
    store: bool | None = Field(None, description="Validated, but has no effect: nothing is stored.")
    service_tier: str | None = Field(None, description="Any name; no effect: there is only one tier.")

    def check(self, max_n: int) -> None:
        """Checks constraints that the schema cannot express. Raises ApiError."""
        if self.stream_options is not None and not self.stream:
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise invalid(message, "stream_options")
        if self.n is not None and self.n > max_n:
            message = (
                f"Invalid 'n': integer above maximum value. Expected a value <= {max_n}, but got {self.n} instead."
            )
            raise invalid(message, "n", "integer_above_max_value")
        if self.prompt_logprobs == -1:
            message = (
                f"Invalid 'prompt_logprobs': -1 asks for the whole vocabulary at each position, but this server "
                f"returns at most {MAX_LOGPROBS} tokens."
            )
            raise invalid(message, "prompt_logprobs", "integer_below_min_value")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("'prompt_logprobs' is not available when 'stream' is enabled.", "prompt_logprobs")
        if self.truncate_prompt_tokens == 0:
            message = "Invalid 'truncate_prompt_tokens': expected -1 or at least 1, but got 0."
            raise invalid(message, "truncate_prompt_tokens", "invalid_value")
        check_stop_strings(self.stop_strings, "stop")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def truncation(self) -> Truncation | None:
        if self.truncate_prompt_tokens is None:
            return None
        kept = None if self.truncate_prompt_tokens < 0 else self.truncate_prompt_tokens
        return Truncation(kept, self.truncation_side == "right")

    def options(self, max_tokens: int | None, logprobs: int | None) -> GenerationOptions:
        """Returns the generation options. Raises ApiError if `logit_bias` has an invalid key, or if a value is out of
        its range after rounding to single precision."""
        return GenerationOptions(
            sampling=self.sampling_params(
                logit_bias=_logit_bias(self.logit_bias or {}),
                logprobs=logprobs,
                prompt_logprobs=self.prompt_logprobs,
                logprob_token_ids=tuple(self.logprob_token_ids or ()),
            ),
            stop=StopConditions(
                max_tokens, tuple(self.stop_token_ids or ()), bool(self.ignore_eos), self.min_tokens or 0
            ),
            stop_strings=self.stop_strings,
            structure=self.structure(),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words or ()),
            n=self.n or 1,
            skip_special_tokens=self.skip_special_tokens is not False,
            includes_stop=bool(self.include_stop_str_in_output),
            continuous_usage=self.include_usage
            and bool(self.stream_options and self.stream_options.continuous_usage_stats),
            truncation=self.truncation,
            cache_salt=self.cache_salt or "",
            priority=self.priority or 0,
            prompt_cache_key=self.prompt_cache_key or "",
        )


def _logit_bias(entries: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    bias = []
    for key, value in entries.items():
        # No token id has ten digits or more. Whether a shorter id is in the vocabulary is checked later.
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            message = f"Invalid key in 'logit_bias': {key[:32]!r}. Expected a token id."
            raise invalid(message, "logit_bias", "invalid_value")
        bias.append((int(key), value))
    return tuple(bias)
