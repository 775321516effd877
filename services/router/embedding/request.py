"""A validated embedding request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.model import ServedModel
from services.router.parameters import PoolingParams
from services.router.rpc import Caller


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Prompts to embed. `timeout` and the fields after it are as in GenerationRequest."""

    request_id: str
    model: ServedModel
    prompts: tuple[list[int], ...]
    pooling: PoolingParams
    timeout: float | None = None
    traceparent: str = ""
    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""

    @classmethod
    def of(
        cls, model: ServedModel, caller: Caller, traceparent: str, prompts: Sequence[list[int]],
        pooling: PoolingParams, *, cache_salt: str = "", priority: int = 0,
    ) -> EmbeddingRequest:  # fmt: skip
        return cls(
            caller.request_id, model, tuple(prompts), pooling, caller.timeout, traceparent, cache_salt, priority,
            caller.tenant,
        )  # fmt: skip

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.prompts))
