"""A served model: its properties and its tokenizer, as a scheduler sent them when the router connected."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from services.router.parameters import EmbeddingInfo, SamplingParams
from services.router.text import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    aliases: tuple[str, ...]
    # Maximum number of tokens of prompt and output together.
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    default_sampling: SamplingParams
    tokenizer_sha256: str
    tokenizer_bytes: int
    architecture: str
    dtype: str
    # None: the model does not support embeddings.
    embedding: EmbeddingInfo | None = None
    # Whether the model supports embeddings only.
    is_encoder: bool = False

    @property
    def tasks(self) -> list[str]:
        """Tasks that the model supports: "generate", "embed" or both."""
        return [*([] if self.is_encoder else ["generate"]), *([] if self.embedding is None else ["embed"])]

    @property
    def key(self) -> tuple[str, str]:
        """The model's name and tokenizer. A sequence can move between schedulers whose models have equal keys."""
        return self.name, self.tokenizer_sha256


@dataclass(frozen=True, slots=True)
class ServedModel:
    info: ModelInfo
    tokenizer: Tokenizer
    # Unix time in seconds at which this router first saw the model: `created` in /v1/models.
    created: int

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: changes when the model's name, architecture, dtype or tokenizer changes."""
        info = self.info
        what = f"{info.name} {info.architecture} {info.dtype} {info.tokenizer_sha256}"
        return "fp_" + hashlib.sha256(what.encode()).hexdigest()[:10]
