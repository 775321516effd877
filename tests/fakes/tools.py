"""Programs that some tests need and that are not in the project's own environment. `make clients` gets them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]
# Python with clients that nobody here wrote.
CLIENTS_PYTHON = Path(os.environ.get("QUIRE_CLIENTS_PYTHON", _ROOT / ".venv-clients" / "bin" / "python"))
# Python with libraries that need openai 3. They conflict with the openai 2 that CLIENTS_PYTHON has.
OPENAI_3_PYTHON = CLIENTS_PYTHON.parents[1] / "openai-3" / "bin" / "python"
NODE = Path(os.environ.get("QUIRE_NODE", _ROOT / ".venv-node" / "bin" / "node"))
# Packages from npm.
NODE_MODULES = Path(os.environ.get("QUIRE_CLIENTS_NODE_MODULES", _ROOT / ".venv-clients" / "node_modules"))


def needs(tool: object, name: str) -> pytest.MarkDecorator:
    """Marks tests that are skipped where `tool` is missing (None, False or an empty text). In CI (.ci/run), they fail
    instead, because tests that are always skipped prove nothing."""
    return pytest.mark.skipif(
        not tool and "TESTS_NEED_TOOLS" not in os.environ, reason=f"there is no {name}: make clients gets it"
    )


def import_or_skip(module: str, reason: str) -> Any:
    """Returns the module. Skips the caller's tests where it is not installed; in CI, they fail instead."""
    if "TESTS_NEED_TOOLS" in os.environ:
        return importlib.import_module(module)
    return pytest.importorskip(module, reason=reason)


def needs_clients() -> pytest.MarkDecorator:
    """Marks tests that need the Python environment with the clients."""
    return needs(CLIENTS_PYTHON.exists(), "environment of clients")


def needs_openai_3() -> pytest.MarkDecorator:
    """Marks tests that need the environment with the clients that use openai 3."""
    return needs(OPENAI_3_PYTHON.exists(), "environment of clients with openai 3")


def needs_node(package: str | None = None) -> pytest.MarkDecorator:
    """Marks tests that need Node.js, and `package` of the clients' packages."""
    return needs(NODE.exists() and (package is None or (NODE_MODULES / package).is_dir()), package or "Node.js")
