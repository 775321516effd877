from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import gpu_run
from tests.steady import processes

# All tests that `-m gpu` selects are in these folders. Such a run imports no other folder, because a GPU machine may
# lack packages that the other tests need.
GPU_TESTS = ("gpu", "unit/worker/triton", "unit/worker/sampling")
TESTS = Path(__file__).parent

# How long idle OpenMP threads of torch spin: as in the worker (services/worker/main.py). With the default, they take
# most of the time of the cores from the other test processes. libgomp reads this when torch is imported, later.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Chooses between compiled and interpreted kernels. pytest calls this as soon as it has loaded this file, before
    any other file of the tests can import Triton."""
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    gpu_run.choose_kernels(config.known_args_namespace.markexpr)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    gpu_run.arrange(config)


def pytest_configure(config: pytest.Config) -> None:
    """Leaves out messages that are about other tests. Keeps Hypothesis from failing a test because an example, or
    finding one, took long."""
    logging.getLogger("asyncio").addFilter(_is_of_this_test)
    if find_spec("hypothesis") is not None:
        from hypothesis import HealthCheck, settings

        settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("any machine")


def _is_of_this_test(record: logging.LogRecord) -> bool:
    """Returns False for an event of an earlier test. All event loops of a process share gRPC's queue of events, so the
    loop of one test can receive a late event for the closed loop of another. It logs that it cannot pass it on."""
    error = record.exc_info[1] if record.exc_info else None
    is_late = "PollerCompletionQueue" in record.getMessage() and "Event loop is closed" in str(error)
    return not is_late


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sets the marker `processes` before `-m` selects tests, if the expression of `-m` has this marker."""
    if "processes" in config.option.markexpr:
        processes.mark(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with gpu_run.limited(item):
        return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr != "gpu" or not collection_path.is_relative_to(TESTS):
        return None
    path = collection_path.relative_to(TESTS)
    folders = [Path(folder) for folder in GPU_TESTS]
    if not any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in folders):
        return True
    lacks_hypothesis = path.suffix == ".py" and find_spec("hypothesis") is None
    return True if lacks_hypothesis and "import hypothesis\n" in _imports(collection_path) else None


def _imports(path: Path) -> str:
    """Returns a line `import PACKAGE` for each package that the file imports from."""
    words = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return "".join(f"import {line[1].partition('.')[0]}\n" for line in words if line[:1] in (["import"], ["from"]))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Runs torch on one thread, on which tiny models are fastest, above all if the cores are busy."""
    import torch  # here, because most tests do not need it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def openai_document() -> Any:
    """Returns OpenAI's own OpenAPI document."""
    path = TESTS.parent.parent / "shared/schema/openai-openapi.json"
    if not path.exists():
        pytest.skip("OpenAI's OpenAPI document is not here")
    document = json.loads(path.read_text())
    # OpenAI's servers, its SDK and Open Responses have null in `usage` until a response is complete.
    usage = document["components"]["schemas"]["Response"]["allOf"][-1]["properties"]["usage"]
    document["components"]["schemas"]["Response"]["allOf"][-1]["properties"]["usage"] = {
        "anyOf": [usage, {"type": "null"}]
    }
    return _with_null(document)


def _with_null(schema: Any) -> Any:
    """Converts OpenAPI 3.0's `nullable`, which the document still uses, to JSON Schema."""
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _with_null(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [converted, {"type": "null"}]} if schema.get("nullable") is True else converted


# For each process of the run: number of greedy tokens excused although they differ from transformers', and number of
# greedy tokens compared.
_TIES: list[tuple[int, int]] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    models = sys.modules.get("tests.unit.worker.tiny_models")  # an import would take seconds, for transformers
    if models is not None:
        _TIES.append((models.ALL_TIES.excused, models.ALL_TIES.compared))
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["ties"] = _TIES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collects the counts of a pytest-xdist process that has finished or died."""
    _TIES.extend(getattr(node, "workeroutput", {}).get("ties", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    excused, compared = (sum(column) for column in zip(*_TIES, strict=True)) if _TIES else (0, 0)
    if compared:
        terminalreporter.write_line(f"{excused} of {compared} greedy tokens excused as near ties")
