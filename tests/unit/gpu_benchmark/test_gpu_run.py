"""`pytest -m gpu` arranges itself on a machine with a GPU: compiled kernels, several processes, longer limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare_tree import ROOT, environment
from tests.gpu_run import LIMIT_S, MOST_PROCESSES

# A driver that finds a device, and a plugin that shows what has become of the options.
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

sys.exit(pytest.main(["-p", "no:cacheprovider", "--collect-only", *sys.argv[2:]], plugins=[Shown()]))
"""


def options(folder: Path, has_gpu: bool, *arguments: str, tools: tuple[str, ...]) -> dict[str, object]:
    plugins = [f"-p{name}" for name in ("pytest_timeout", "xdist.plugin") if name.partition(".")[0] in tools]
    variables = {**environment(folder, ("pytest", *tools)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    variables.pop("PYTEST_XDIST_WORKER", None)  # of the run that this test is part of
    result = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(has_gpu), *plugins, *arguments, "tests/gpu/test_compiled.py"],
        env=variables | {"TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("SHOWN"))
    found: dict[str, object] = json.loads(line.removeprefix("SHOWN"))
    return found


BOTH = ("pytest_timeout", "xdist")
PROCESSES = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))


@pytest.mark.timeout(600)
def test_on_a_gpu_tests_run_side_by_side_with_compiled_kernels_and_longer_limits(tmp_path: Path) -> None:
    assert options(tmp_path, True, "-m", "gpu", tools=BOTH) == {
        "numprocesses": PROCESSES, "dist": "worksteal", "timeout": LIMIT_S, "interpret": "0",
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    found = options(tmp_path, True, "-m", "gpu", "-n0", "--timeout=7", tools=BOTH)
    assert (found["numprocesses"], found["timeout"]) == (0, 7)


@pytest.mark.timeout(600)
def test_a_machine_without_the_plugins_runs_them_one_by_one(tmp_path: Path) -> None:
    assert options(tmp_path, True, "-m", "gpu", tools=()) == {
        "numprocesses": "absent", "dist": "absent", "timeout": "absent", "interpret": "0",
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_without_a_gpu_nothing_changes(tmp_path: Path) -> None:
    found = options(tmp_path, False, "-m", "gpu", tools=BOTH)
    assert found == {"numprocesses": None, "dist": "no", "timeout": None, "interpret": "1"}


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

command = ["-p", "no:cacheprovider", "-s", "-m", "gpu", "tests/gpu/test_compiled.py"]
sys.exit(pytest.main(command, plugins=[Collected()]))
"""


@pytest.mark.timeout(600)
def test_a_test_that_hangs_ends_the_run_with_its_stack(tmp_path: Path) -> None:
    variables = {**environment(tmp_path, ("pytest",)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run([sys.executable, "-c", HANGS], env=variables, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert "Timeout" in result.stderr
    assert "in runtest" in result.stderr
