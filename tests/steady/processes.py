"""Marks the tests whose modules can start processes.

A test gets the marker `processes` if its module, a module of one of its fixtures, or a test module that these import
has a line that starts a process, or imports a part of Quire that starts processes.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
STARTS = re.compile(r"\bsubprocess\.(Popen|run|check_\w+)\(|\bcreate_subprocess_\w+\(|\bos\.fork\(")
# Each of these starts processes, directly or through the modules that it uses.
PARTS = {
    "benchmarks.gpu.supervisor", "benchmarks.pauses.fleet", "quire.LLM", "quire.cli.supervisor", "quire.offline.llm",
    "quire.offline.own_stack", "quire.simulator.cluster", "services.router.main", "services.worker.ops.triton.compile",
    "shared.python_child",
}  # fmt: skip


def mark(items: list[pytest.Item]) -> None:
    for item in items:
        if any(starts_processes(path) for path in _modules(item)):
            item.add_marker("processes")


def _modules(item: pytest.Item) -> set[Path]:
    """Returns the files of the test and of its fixtures."""
    found = {item.path}
    definitions = getattr(item, "_fixtureinfo", None)
    for fixtures in definitions.name2fixturedefs.values() if definitions is not None else ():
        for fixture in fixtures:
            found.add(Path(fixture.func.__code__.co_filename))
    return found


def starts_processes(path: Path) -> bool:
    """Returns whether this test module, or a test module that it imports, starts processes."""
    return any(_starts_itself(module) for module in _imported(path))


@cache
def _starts_itself(path: Path) -> bool:
    return bool(STARTS.search(path.read_text(encoding="utf-8"))) or not PARTS.isdisjoint(_imports(path))


@cache
def _imported(path: Path) -> frozenset[Path]:
    """Returns this file and all test modules that it imports, directly or indirectly."""
    found: set[Path] = set()
    left = [path]
    while left:
        module = left.pop()
        if module not in found and module.is_relative_to(TESTS):
            found.add(module)
            files = [TESTS.parent / (name.replace(".", "/") + ".py") for name in _imports(module)]
            left += [file for file in files if file.exists()]
    return frozenset(found)


@cache
def _imports(path: Path) -> frozenset[str]:
    """Returns the names of imported modules, and of the objects imported from them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)
