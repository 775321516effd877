"""What a router knows of a model: facts from a scheduler's hello, and the tokenizer that came with them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.parameters.pooling import EmbeddingInfo
from services.router.parameters.sampling import SamplingParams
from services.router.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    aliases: tuple[str, ...]
    # Tokens of prompt and output together, at most.
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    default_sampling: SamplingParams
    tokenizer_sha256: str
    tokenizer_bytes: int
    architecture: str
    dtype: str
    # None: it gives no embeddings.
    embedding: EmbeddingInfo | None = None
    # It gives nothing else.
    is_encoder: bool = False

    @property
    def tasks(self) -> list[str]:
        """What it can be asked for."""
        return [*([] if self.is_encoder else ["generate"]), *([] if self.embedding is None else ["embed"])]

    @property
    def key(self) -> tuple[str, str]:
        """Schedulers whose models have equal keys can take over each other's sequences: same name, same token ids."""
        return self.name, self.tokenizer_sha256


@dataclass(frozen=True, slots=True)
class ServedModel:
    info: ModelInfo
    tokenizer: Tokenizer
    # When this router first saw it, seconds since the epoch: `created` in /v1/models.
    created: int

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: changes when what answers changes."""
        info = self.info
        what = f"{info.name} {info.architecture} {info.dtype} {info.tokenizer_sha256}"
        return "fp_" + hashlib.sha256(what.encode()).hexdigest()[:10]


def output_budget(
    info: ModelInfo, num_prompt_tokens: int, max_tokens: int | None, params: tuple[str, str], *, clamps: bool = False
) -> int:
    """The `max_tokens` to submit. `params` names the request's fields for prompt and limit in errors. Raises ApiError
    where prompt and answer do not fit the context; with `clamps`, an answer is given what there is."""
    prompt_param, max_tokens_param = params
    if num_prompt_tokens == 0:
        raise invalid(f"Invalid '{prompt_param}': it has no tokens.", prompt_param)
    room = info.max_model_len - num_prompt_tokens
    if room < 1:
        raise context_length_exceeded(info, f"your prompt has {num_prompt_tokens} tokens", prompt_param)
    if max_tokens is None or (clamps and max_tokens > room):
        return room
    if max_tokens > room:
        raise ApiError(
            ErrorKind.CONTEXT_LENGTH,
            f"'{max_tokens_param}' is too large: {max_tokens}. This model's maximum context length is "
            f"{info.max_model_len} tokens and your prompt has {num_prompt_tokens}, which leaves {room} for the answer.",
            max_tokens_param,
        )
    return max_tokens


def context_length_exceeded(info: ModelInfo, however: str, param: str) -> ApiError:
    return ApiError(
        ErrorKind.CONTEXT_LENGTH,
        f"This model's maximum context length is {info.max_model_len} tokens. However, {however}, which leaves no room "
        f"for an answer. Please shorten '{param}'.",
        param,
    )


def check_generates(info: ModelInfo) -> None:
    """Raises ApiError for a model that gives embeddings alone."""
    if info.is_encoder:
        message = f"The model `{info.name}` is an encoder: it gives embeddings and generates no text."
        raise invalid(message, "model")
