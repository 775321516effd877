"""A served model: its properties and its tokenizer, as a scheduler sent them when the router connected."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from services.router.parameters import ClassifierInfo, EmbeddingInfo, SamplingParams
from services.router.text import Tokenizer
from shared.model_label import model_label

# Weight of a version whose scheduler names none.
DEFAULT_WEIGHT = 100


class ModelKey(NamedTuple):
    """Identifies a model. A sequence can move between schedulers whose models have equal keys."""

    name: str
    # Version among those of the name; empty: unnamed.
    version: str
    tokenizer_sha256: str


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
    # Whether the model is an encoder, which generates nothing.
    is_encoder: bool = False
    # None: the model is not a classifier.
    classifier: ClassifierInfo | None = None
    # Whether the model is a decoder without output layer, which generates nothing.
    has_no_output_layer: bool = False
    # Version among those that are served under the name; empty: the only one.
    version: str = ""

    @property
    def tasks(self) -> list[str]:
        """Tasks that the model supports: some of "generate", "embed" and "classify"."""
        supports = {
            "generate": not (self.is_encoder or self.has_no_output_layer),
            "embed": self.embedding is not None,
            "classify": self.classifier is not None,
        }
        return [task for task, is_supported in supports.items() if is_supported]

    @property
    def key(self) -> ModelKey:
        return ModelKey(self.name, self.version, self.tokenizer_sha256)


@dataclass(frozen=True, slots=True)
class ServedModel:
    info: ModelInfo
    tokenizer: Tokenizer
    # Unix time in seconds at which this router first saw the model: `created` in /v1/models.
    created: int
    # Whether the request named this version, so that no other one may answer it.
    is_pinned: bool = False

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: changes when the model's name, version, architecture, dtype or tokenizer
        changes."""
        info = self.info
        what = f"{model_label(info.name, info.version)} {info.architecture} {info.dtype} {info.tokenizer_sha256}"
        return "fp_" + hashlib.sha256(what.encode()).hexdigest()[:10]
