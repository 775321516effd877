"""What a router knows of a model: facts from a scheduler's hello, and the tokenizer that came with them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from services.router.parameters import EmbeddingInfo, SamplingParams
from services.router.text import Tokenizer


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
