"""Validated requests whose prompts each end with a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.router.embedding.inputs import classifier_of, embedding_of
from services.router.model import ServedModel
from services.router.parameters import ClassificationParams, PoolingParams
from services.router.rpc import Caller


class PooledRequest(Protocol):
    """Prompts, each of which ends with a vector. `timeout` and the properties after it are as in GenerationRequest."""

    @property
    def request_id(self) -> str: ...
    @property
    def model(self) -> ServedModel: ...
    @property
    def prompts(self) -> tuple[list[int], ...]: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def traceparent(self) -> str: ...
    @property
    def cache_salt(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def tenant(self) -> str: ...

    @property
    def num_values(self) -> int:
        """Number of values in each vector."""
        ...

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all prompts."""
        ...

    def params(self, index: int) -> PoolingParams | ClassificationParams:
        """Returns the parameters of one prompt."""
        ...


@dataclass(frozen=True, slots=True)
class _Prompts:
    request_id: str
    model: ServedModel
    prompts: tuple[list[int], ...]
    timeout: float | None
    traceparent: str
    cache_salt: str
    priority: int
    tenant: str

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.prompts))


@dataclass(frozen=True, slots=True)
class EmbeddingRequest(_Prompts):
    """See `PooledRequest`. Asks for embeddings."""

    pooling: PoolingParams

    @classmethod
    def of(
        cls, model: ServedModel, caller: Caller, traceparent: str, prompts: Sequence[list[int]],
        pooling: PoolingParams, *, cache_salt: str = "", priority: int = 0,
    ) -> EmbeddingRequest:  # fmt: skip
        return cls(
            caller.request_id, model, tuple(prompts), caller.timeout, traceparent, cache_salt, priority,
            caller.tenant, pooling,
        )  # fmt: skip

    @property
    def num_values(self) -> int:
        return self.pooling.size(embedding_of(self.model))

    def params(self, index: int) -> PoolingParams:
        return self.pooling


@dataclass(frozen=True, slots=True)
class ClassificationRequest(_Prompts):
    """See `PooledRequest`. Asks for a classifier's scores."""

    each: tuple[ClassificationParams, ...]  # one for each prompt

    @classmethod
    def of(
        cls, model: ServedModel, caller: Caller, traceparent: str, prompts: Sequence[list[int]],
        each: Sequence[ClassificationParams], *, cache_salt: str = "", priority: int = 0,
    ) -> ClassificationRequest:  # fmt: skip
        return cls(
            caller.request_id, model, tuple(prompts), caller.timeout, traceparent, cache_salt, priority,
            caller.tenant, tuple(each),
        )  # fmt: skip

    @property
    def num_values(self) -> int:
        return len(classifier_of(self.model).labels)

    def params(self, index: int) -> ClassificationParams:
        return self.each[index]
