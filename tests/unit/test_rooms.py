"""No module imports itself by way of others. Imports under TYPE_CHECKING and in functions count.

`make imports` sees circles between packages, and not those of a module with the package that it is in: a room's door
imports the room's modules, so none of them may import from the door.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

ROOTS = ("services", "quire", "shared", "benchmarks")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*ROOTS, exclude_type_checking_imports=False, cache_dir=None)


@pytest.mark.parametrize("package", ROOTS)
def test_no_module_is_in_a_circle(graph: grimp.ImportGraph, package: str) -> None:
    # Generated modules import what protoc has them import.
    modules = {name for name in graph.find_descendants(package) | {package} if "_pb2" not in name}
    imported = {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
    assert len(modules) > 1
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        # Each is imported by the next.
        pytest.fail("a circle of modules: " + " imports ".join(reversed(error.args[1])))
