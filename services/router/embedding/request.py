"""Validated requests whose prompts each end with a vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.router.embedding.inputs import classifier_of, embedding_of
from services.router.model import ServedModel
from services.router.parameters import ClassificationParams, PoolingParams
from services.router.rpc import Caller
from services.router.text import PairTemplate, TokenPair


@dataclass(frozen=True, slots=True)
class PooledRequest(ABC):
    """Prompts, each of which ends with a vector. `traceparent` and the fields after it are as in GenerationRequest."""

    model: ServedModel
    caller: Caller
    traceparent: str
    cache_salt: str = field(default="", kw_only=True)
    priority: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def num_prompts(self) -> int: ...

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of tokens of all prompts."""

    @property
    @abstractmethod
    def num_values(self) -> int:
        """Number of values in each vector."""

    @abstractmethod
    def prompt(self, index: int) -> list[int]:
        """Returns the token ids of one prompt."""

    @abstractmethod
    def params(self, index: int) -> PoolingParams | ClassificationParams:
        """Returns the parameters of one prompt."""


@dataclass(frozen=True, slots=True)
class _ListedPrompts(PooledRequest):
    prompts: Sequence[list[int]]

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def prompt(self, index: int) -> list[int]:
        return self.prompts[index]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest(_ListedPrompts):
    """Asks for embeddings."""

    pooling: PoolingParams

    @property
    def num_values(self) -> int:
        return self.pooling.size(embedding_of(self.model))

    def params(self, index: int) -> PoolingParams:
        return self.pooling


@dataclass(frozen=True, slots=True)
class ClassificationRequest(_ListedPrompts):
    """Asks for a classifier's scores of texts."""

    activates: bool

    @property
    def num_values(self) -> int:
        return len(classifier_of(self.model).labels)

    def params(self, index: int) -> ClassificationParams:
        return ClassificationParams(None, self.activates)


@dataclass(frozen=True, slots=True)
class PairRequest(PooledRequest):
    """Asks for a classifier's scores of pairs of texts. A prompt is made when it is read: the same first text can be
    part of thousands of prompts, which would take gigabytes together."""

    template: PairTemplate
    pairs: Sequence[TokenPair]
    activates: bool

    @property
    def num_prompts(self) -> int:
        return len(self.pairs)

    @property
    def num_tokens(self) -> int:
        return sum(map(self.template.num_tokens, self.pairs))

    @property
    def num_values(self) -> int:
        return len(classifier_of(self.model).labels)

    def prompt(self, index: int) -> list[int]:
        return self.template.join(self.pairs[index])

    def params(self, index: int) -> ClassificationParams:
        return ClassificationParams(self.template.second_text_at(self.pairs[index]), self.activates)
