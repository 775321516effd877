"""`pytest -m gpu` arranges itself on a machine with a GPU: compiled kernels, several processes, longer limits."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.startup import gpu
from tests import gpu_run
from tests.bare_tree import ROOT, environment
from tests.gpu_run import LIMIT_S, MOST_PROCESSES

# A driver that finds a device, and a plugin that shows what has become of the options. It ends the run before any test
# is collected, because the tests import torch.
RUN = """
import json, os, sys
import pytest
from tests import gpu_run

gpu_run.has_gpu = lambda: json.loads(sys.argv[1])

class Shown:
    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        options = {name: getattr(config.option, name, "absent") for name in ("numprocesses", "dist", "timeout")}
        print("SHOWN", json.dumps(options | {"interpret": os.environ["TRITON_INTERPRET"]}))
        pytest.exit("the options are shown", returncode=0)

sys.exit(pytest.main(["-p", "no:cacheprovider", "--collect-only", *sys.argv[2:], "tests"], plugins=[Shown()]))
"""


def options(
    folder: Path, has_gpu: bool, *arguments: str, tools: tuple[str, ...], interpret: str | None = "1"
) -> dict[str, object]:
    plugins = [f"-p{name}" for name in ("pytest_timeout", "xdist.plugin") if name.partition(".")[0] in tools]
    variables = {**environment(folder, ("pytest", *tools)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("PYTEST_XDIST_WORKER", "TRITON_INTERPRET"):  # of the run that this test is part of
        variables.pop(name, None)
    variables |= {} if interpret is None else {"TRITON_INTERPRET": interpret}
    result = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(has_gpu), *plugins, *arguments],
        env=variables, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("SHOWN"))
    found: dict[str, object] = json.loads(line.removeprefix("SHOWN"))
    return found


BOTH = ("pytest_timeout", "xdist")
PROCESSES = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))


def test_on_a_gpu_tests_run_side_by_side_with_compiled_kernels_and_longer_limits(tmp_path: Path) -> None:
    assert options(tmp_path, True, "-m", "gpu", tools=BOTH) == {
        "numprocesses": PROCESSES, "dist": "worksteal", "timeout": LIMIT_S, "interpret": "0",
    }  # fmt: skip


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    found = options(tmp_path, True, "-m", "gpu", "-n0", "--timeout=7", tools=BOTH)
    assert (found["numprocesses"], found["timeout"]) == (0, 7)


def test_a_machine_without_the_plugins_runs_them_one_by_one(tmp_path: Path) -> None:
    assert options(tmp_path, True, "-m", "gpu", tools=()) == {
        "numprocesses": "absent", "dist": "absent", "timeout": "absent", "interpret": "0",
    }  # fmt: skip


def test_without_a_gpu_nothing_changes(tmp_path: Path) -> None:
    found = options(tmp_path, False, "-m", "gpu", tools=BOTH)
    assert found == {"numprocesses": None, "dist": "no", "timeout": None, "interpret": "1"}


@pytest.mark.parametrize(("interpret", "expected"), [("1", "1"), ("0", "0"), (None, "0")])
def test_a_run_of_other_tests_keeps_what_the_environment_says(
    tmp_path: Path, interpret: str | None, expected: str
) -> None:
    found = options(tmp_path, True, tools=(), interpret=interpret)
    assert found["interpret"] == expected


def driver(capability: tuple[int, int]) -> SimpleNamespace:
    """libcuda's functions, of a machine with one device."""
    attributes = {75: capability[0], 76: capability[1]}

    def get_attribute(value: Any, number: int, device: object) -> int:
        value._obj.value = attributes[number]
        return 0

    return SimpleNamespace(
        cuInit=lambda flags: 0, cuDeviceGet=lambda device, index: 0, cuDeviceGetAttribute=get_attribute
    )


@pytest.mark.parametrize(("capability", "counts"), [((7, 5), False), ((8, 0), True), ((12, 1), True)])
def test_only_a_gpu_that_quire_runs_on_counts(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], counts: bool
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(capability))
    assert gpu_run.has_gpu.__wrapped__() is counts
    assert gpu_run.LEAST_CAPABILITY == gpu.LEAST_CAPABILITY


HANGS = """
import sys, time
import pytest
from tests import gpu_run

gpu_run.has_gpu = lambda: True
gpu_run.LIMIT_S = 0.5

class Hanging(pytest.Item):
    def runtest(self):
        time.sleep(600)

class Collected:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session, config, items):
        items[:] = [Hanging.from_parent(session, name="hangs")]
        items[0].add_marker("gpu")

command = ["-p", "no:cacheprovider", "-m", "gpu", "tests/gpu/test_compiled.py"]
sys.exit(pytest.main(command, plugins=[Collected()]))
"""


def test_a_test_that_hangs_ends_the_run_with_its_stack(tmp_path: Path) -> None:
    variables = {**environment(tmp_path, ("pytest",)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run([sys.executable, "-c", HANGS], env=variables, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert "Timeout" in result.stderr
    assert "in runtest" in result.stderr
