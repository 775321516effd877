"""The fields that the bodies of /api/chat and /api/generate share, among them Ollama's `options`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from services.router.chat import thinking_kwargs
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.generation import GenerationOptions
from services.router.grammar import Structure, StructureKind
from services.router.http import (
    Body,
    FrequencyPenalty,
    MinP,
    PresencePenalty,
    Seed,
    Temperature,
    TopP,
    sampling_params,
    string_or_array,
    union,
)
from services.router.parameters import MAX_LOGPROBS, SamplingParams, StopConditions, check_stop_strings

# Samplers that are not implemented, with the values that turn them off.
_NOT_BUILT: dict[str, tuple[object, ...]] = {"mirostat": (0,), "tfs_z": (0, 1), "typical_p": (0, 1)}
# Options without effect. Most of them control how Ollama loads a model. Quire loads its models before any request.
_WITHOUT_EFFECT = frozenset(
    {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "vocab_only"}
    | {"use_mmap", "use_mlock", "logits_all", "embedding_only", "num_keep", "penalize_newline"}
    | {"mirostat_tau", "mirostat_eta"}
)


class Options(Body):
    known_extras = _WITHOUT_EFFECT
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = _NOT_BUILT

    num_predict: int | None = Field(
        None,
        ge=-2,
        description=(
            "Maximum number of tokens in the answer. If 0 or less, or more than fit in the context: as many as fit."
        ),
    )
    temperature: Temperature = None
    top_k: int | None = Field(None, le=2**31, description="Samples from the k most likely tokens; 0 and less keep all.")
    top_p: TopP = None
    min_p: MinP = None
    seed: Seed = None
    stop: (
        Annotated[
            Annotated[str, Tag("#string")] | Annotated[list[str], Tag("#array")],
            union(string_or_array, "a string or an array of strings"),
        ]
        | None
    ) = Field(
        None,
        description="Stop strings: up to 16, each of at most 512 characters. The first one found ends the answer.",
    )
    repeat_penalty: float | None = Field(
        None,
        ge=0,
        le=100,
        description=(
            "Divides positive logits, and multiplies negative ones, of every token in the prompt and the answer; "
            "0 and 1 have no effect."
        ),
    )
    repeat_last_n: int | None = Field(
        None, ge=-1, description="0 turns all penalties off. With any other value, penalties count all tokens."
    )
    presence_penalty: PresencePenalty = None
    frequency_penalty: FrequencyPenalty = None

    def sampling(self, logprobs: int | None) -> SamplingParams:
        """Returns the sampling parameters. Raises ApiError."""
        is_penalized = self.repeat_last_n != 0
        return sampling_params(
            path="options.",
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=1.0 if self.repeat_penalty == 0 or not is_penalized else self.repeat_penalty,
            presence_penalty=self.presence_penalty if is_penalized else 0.0,
            frequency_penalty=self.frequency_penalty if is_penalized else 0.0,
            seed=self.seed,
            logprobs=logprobs,
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens in the answer. None if `num_predict` is missing, or is 0 or less: the answer may
        then fill the context."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


def _format_tag(value: object) -> str | None:
    return "#string" if isinstance(value, str) else "#object" if isinstance(value, dict) else None


def _think_tag(value: object) -> str | None:
    return "#boolean" if isinstance(value, bool) else "#string" if isinstance(value, str) else None


_NO_OPTIONS = Options.model_validate({})


class OllamaBody(Body):
    """Fields that chat and generate share."""

    # These fields have no effect: prompts of these bodies are never cut, and the context is never shifted to make room
    # for more tokens.
    known_extras = frozenset({"truncate", "shift"})

    model: str = Field(min_length=1, description="Name or alias of a served model, with or without `:latest`.")
    stream: bool | None = Field(
        None, description="Whether the answer is streamed, as one JSON object per line. Default: true."
    )
    options: Options | None = Field(None, description="Generation options. Options for loading a model have no effect.")
    format: (
        Annotated[
            Annotated[Literal["", "json"], Tag("#string")] | Annotated[dict[str, Any], Tag("#object")],
            union(_format_tag, "'json' or a JSON schema"),
        ]
        | None
    ) = Field(None, description="`json` for any JSON object, or a JSON schema that the answer must match.")
    think: (
        Annotated[
            Annotated[bool, Tag("#boolean")] | Annotated[Literal["low", "medium", "high", "max"], Tag("#string")],
            union(_think_tag, "a boolean or a reasoning effort"),
        ]
        | None
    ) = Field(
        None,
        description=(
            "Whether the model reasons before it answers, or its reasoning effort. Default: decided by the chat "
            "template."
        ),
    )
    keep_alive: Any = Field(None, description="No effect: models stay loaded.")
    logprobs: bool | None = Field(None, description="Whether to return the log probability of each token.")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="With `logprobs`: number of most likely tokens to return at each position.",
    )

    @property
    def is_streamed(self) -> bool:
        return self.stream is not False

    @property
    def template_kwargs(self) -> dict[str, Any] | None:
        if isinstance(self.think, str):
            return thinking_kwargs(True, self.think)
        return thinking_kwargs(self.think)

    def generation_options(self) -> GenerationOptions:
        """Returns the generation options. Raises ApiError."""
        if self.top_logprobs and not self.logprobs:
            raise invalid("Invalid 'top_logprobs': it needs 'logprobs' to be true.", "top_logprobs")
        options = self.options or _NO_OPTIONS
        check_stop_strings(options.stop_strings, "options.stop")
        return GenerationOptions(
            sampling=options.sampling((self.top_logprobs or 0) if self.logprobs else None),
            stop=StopConditions(options.max_tokens),
            stop_strings=options.stop_strings,
            structure=self._structure(),
            path="options.",
        )

    def _structure(self) -> Structure | None:
        match self.format:
            case None | "":
                return None
            case "json":
                return Structure(StructureKind.JSON_OBJECT, "", "format")
            case schema:
                return Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "format")


def refuse(name: str, value: object) -> None:
    """Refuses a field that is not supported: raises ApiError if its `value` is not empty. `name`: the field's path in
    the body."""
    if value:
        raise ApiError(ErrorKind.UNSUPPORTED, f"'{name}' is not supported by this server.", name)
