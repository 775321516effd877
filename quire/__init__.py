"""Quire serves large language models from a paged KV cache.

The package's public names are loaded on first use, so that `import quire` itself loads nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.cli.supervisor import StackError as StackError
    from quire.client.aio import AsyncClient as AsyncClient
    from quire.client.errors import QuireError as QuireError
    from quire.client.errors import StreamCutError as StreamCutError
    from quire.client.sync import Client as Client
    from quire.offline.llm import LLM as LLM
    from quire.offline.outputs import CompletionOutput as CompletionOutput
    from quire.offline.outputs import EmbeddingOutput as EmbeddingOutput
    from quire.offline.outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
    from quire.offline.outputs import RequestOutput as RequestOutput
    from quire.offline.outputs import ScoringOutput as ScoringOutput
    from quire.offline.outputs import ScoringRequestOutput as ScoringRequestOutput
    from quire.offline.pooling_params import PoolingParams as PoolingParams
    from quire.offline.sampling_params import SamplingParams as SamplingParams
    from quire.offline.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
_HOMES = {
    "AsyncClient": "quire.client.aio",
    "Client": "quire.client.sync",
    "CompletionOutput": "quire.offline.outputs",
    "EmbeddingOutput": "quire.offline.outputs",
    "EmbeddingRequestOutput": "quire.offline.outputs",
    "LLM": "quire.offline.llm",
    "PoolingParams": "quire.offline.pooling_params",
    "QuireError": "quire.client.errors",
    "RequestOutput": "quire.offline.outputs",
    "SamplingParams": "quire.offline.sampling_params",
    "ScoringOutput": "quire.offline.outputs",
    "ScoringRequestOutput": "quire.offline.outputs",
    "StackError": "quire.cli.supervisor",
    "StreamCutError": "quire.client.errors",
    "StructuredOutputsParams": "quire.offline.structured_outputs",
}

__all__ = [
    "LLM",
    "AsyncClient",
    "Client",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "PoolingParams",
    "QuireError",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StackError",
    "StreamCutError",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
