"""Quire serves large language models from a paged KV cache.

What a user imports is here, and loaded when it is first used: `import quire` itself costs nothing.
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
    from quire.offline.outputs import RequestOutput as RequestOutput
    from quire.offline.sampling_params import SamplingParams as SamplingParams
_HOMES = {
    "AsyncClient": "quire.client.aio",
    "Client": "quire.client.sync",
    "CompletionOutput": "quire.offline.outputs",
    "LLM": "quire.offline.llm",
    "QuireError": "quire.client.errors",
    "RequestOutput": "quire.offline.outputs",
    "SamplingParams": "quire.offline.sampling_params",
    "StackError": "quire.cli.supervisor",
    "StreamCutError": "quire.client.errors",
}

__all__ = [
    "LLM",
    "AsyncClient",
    "Client",
    "CompletionOutput",
    "QuireError",
    "RequestOutput",
    "SamplingParams",
    "StackError",
    "StreamCutError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
