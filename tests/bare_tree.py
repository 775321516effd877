"""A Python environment with only the packages of a GPU machine: torch, Triton, transformers, safetensors, tokenizers,
numpy, grpcio, protobuf and their dependencies. All other packages that Quire can use are hidden.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
HIDDEN = (
    "aiohttp", "anthropic", "envoy", "gguf", "google.api", "google.rpc", "grpc_health", "grpc_reflection",
    "hypothesis", "jsonschema", "jsonschema_rs", "llguidance", "matplotlib", "ollama", "openai", "opentelemetry",
    "prometheus_client", "prompt_toolkit", "pydantic", "pydantic_core", "pytest", "pytest_asyncio", "pytest_timeout",
    "redis", "requests", "rich", "schemathesis", "sentence_transformers", "uvloop", "xdist", "yarl",
)  # fmt: skip

# Python runs this file in every process that has the folder on its path, child processes included.
_SITE = """
import sys
from importlib.machinery import PathFinder


class Finder:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        if any(name == hidden or name.startswith(hidden + ".") for hidden in HIDDEN):
            return None
        return PathFinder.find_spec(name, path, target)


sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""


def environment(folder: Path, shown: Sequence[str] = ()) -> Mapping[str, str]:
    """Returns environment variables for processes that find the source tree without an installation, and none of the
    packages in `HIDDEN` except those in `shown`. Writes a sitecustomize.py to `folder`."""
    hidden = tuple(name for name in HIDDEN if name not in shown)
    (folder / "sitecustomize.py").write_text(f"HIDDEN = {hidden!r}\n{_SITE}")
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
