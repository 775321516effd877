"""A case that fails, in whatever way, costs the others nothing, and what was measured is kept."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import supervisor as supervisor_module
from benchmarks.gpu.archive import Record, table
from benchmarks.gpu.cases import Group, Result, Setting
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.supervisor import Supervisor, _Progress
from tests.bare_tree import ROOT
from tests.fakes.waiting import HANG_S

MODULE = "tests.unit.gpu_benchmark.failing_cases"


@pytest.fixture(autouse=True)
def children_may_start_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "START_LIMIT_S", HANG_S)


class ClockOfHangs(Supervisor):
    """Finds that a case has taken too long as soon as it is one that hangs, and no other case ever has."""

    def _next(self, process: Any, current: Result | None) -> dict[str, Any] | str:
        if current is not None and current.case == "hangs":
            process.begun_at = -math.inf
        return super()._next(process, current)


def run(folder: Path, name: str) -> tuple[Record, Supervisor]:
    record = Record(folder, "trial", {"commit": "abc"})
    supervisor = ClockOfHangs(Setting(), record.logs, time.monotonic() + 3600, record)
    supervisor.run([Group(MODULE, name, 3600.0)], num_processes=2)
    return record, supervisor


def test_a_case_that_fails_is_listed_and_the_others_run(tmp_path: Path) -> None:
    record, supervisor = run(tmp_path, "one by one")
    found = {result.case: result for result in supervisor.results}
    assert [name for name, result in found.items() if result.status == "ok"] == [
        "brings an error bound", "brings figures", "runs after a hang", "runs in a fresh context",
    ]  # fmt: skip
    assert found["brings an error bound"].error == 1e-3
    assert [figure.value for figure in found["brings figures"].figures] == [0.0, 1.0, 2.0]
    assert found["raises"].problem == "ValueError: a kernel is wrong"
    assert "in _raise" in found["raises"].traceback
    assert found["hangs"].problem == "it took longer than 3600 s"
    assert found["kills its process"].problem == "the child process ended with exit code 9"
    assert "illegal memory access" in found["leaves the context dead"].problem
    assert "the CUDA context is dead" in found["leaves the context dead"].problem

    record.write_archive(supervisor.results, table(supervisor.results))
    assert [path.name for path in tmp_path.iterdir()] == ["trial.tar.gz"]
    with tarfile.open(tmp_path / "trial.tar.gz") as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert set(texts) == {"results.json", "table.txt", "tracebacks.txt", "events.jsonl", "logs/one-by-one.log"}
    results = json.loads(texts["results.json"])
    assert results["about"] == {"commit": "abc"}
    assert len(results["results"]) == 8
    assert "4 of 8 cases passed" in texts["table.txt"]
    assert "ValueError: a kernel is wrong" in texts["tracebacks.txt"]


def test_a_group_that_does_not_load_is_a_failure(tmp_path: Path) -> None:
    _, supervisor = run(tmp_path, "does not load")
    (failed,) = supervisor.results
    assert (failed.status, failed.problem) == ("failed", "ImportError: there is no such kernel")


def test_a_child_that_ends_between_two_cases_costs_no_case(tmp_path: Path) -> None:
    _, supervisor = run(tmp_path, "between")
    assert [(result.case, result.status, result.problem) for result in supervisor.results] == [
        ("passes", "ok", ""),
        ("(between two cases)", "failed", "the child process ended with exit code 7"),
        ("lacks a library", "skipped", "there is no library"),
        ("comes last", "ok", ""),
    ]  # fmt: skip
    assert "2 of 4 cases passed, 1 skipped" in table(supervisor.results)


def test_a_child_that_ends_before_every_case_leaves_the_rest_listed(tmp_path: Path) -> None:
    record = Record(tmp_path, "trial", {})
    supervisor = Supervisor(Setting(), record.logs, time.monotonic() + 300, record)
    progress = _Progress(["first"], ["second", "third"])
    group = Group(MODULE, "some", 5.0)
    failed = Result("some", "(between two cases)", "failed", problem="the child process ended with exit code 1")
    supervisor._end_between_cases(SimpleNamespace(group=group, begun_at=0.0), progress, failed, retry=False)  # type: ignore[arg-type]
    assert progress.is_over
    assert [(result.case, result.status) for result in supervisor.results] == [
        ("(between two cases)", "failed"), ("second", "not run"), ("third", "not run"),
    ]  # fmt: skip


@pytest.mark.thorough
def test_an_engine_starts_again_after_a_dead_context(tmp_path: Path) -> None:
    record = Record(tmp_path, "trial", {})
    supervisor = Supervisor(Setting(dry_run=True), record.logs, time.monotonic() + 3600, record)
    supervisor.run([Group("tests.unit.gpu_benchmark.dying_engine", "engine", 600.0)], num_processes=1)
    assert [(result.case, result.status) for result in supervisor.results] == [
        ("starts", "ok"), ("loses the device", "failed"), ("masks", "ok"), ("embeddings", "ok"),
    ]  # fmt: skip
    assert "the CUDA context is dead" in supervisor.results[1].problem


class EndOfTime(Record):
    """The deadline falls when the first figure comes."""

    supervisor: Supervisor

    def figure(self, result: Result, figure: Figure) -> None:
        self.supervisor.deadline = 0.0


def test_cases_that_the_deadline_keeps_from_beginning_are_listed(tmp_path: Path) -> None:
    record = EndOfTime(tmp_path, "trial", {})
    supervisor = Supervisor(Setting(), record.logs, time.monotonic() + 3600, record)
    record.supervisor = supervisor
    supervisor.run([Group(MODULE, "long", 600.0), Group(MODULE, "behind", 600.0)], num_processes=1)
    assert [(result.case, result.status, result.problem) for result in supervisor.results] == [
        ("brings a figure and goes on", "failed", "the command reached its time limit"),
        ("comes after it", "not run", "the command reached its time limit"),
        ("(all cases)", "not run", "the command reached its time limit"),
    ]


COMMAND = f"""
import sys
from benchmarks.gpu import commands
from benchmarks.gpu.cases import Group
commands._smoke_stages = lambda setting: [
    commands.Stage("long", [Group("{MODULE}", "long", 600.0), Group("{MODULE}", "behind", 600.0)], 1),
    commands.Stage("later", [Group("{MODULE}", "one by one", 600.0)], 1),
]
sys.exit(commands.main(["smoke", "--dry-run", "--out", sys.argv[1]]))
"""


@pytest.mark.thorough
def test_what_was_measured_before_sigterm_is_in_the_archive(tmp_path: Path) -> None:
    mark, out = tmp_path / "mark", tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "QUIRE_TEST_MARK": str(mark)}
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(out)], env=environment, cwd=tmp_path)
    while not mark.exists():
        assert process.poll() is None, "it has ended by itself"
        time.sleep(0.1)
    lines = [json.loads(line) for line in (out / "smoke.jsonl").read_text().splitlines()]
    assert [entry["figure"]["name"] for entry in lines if "figure" in entry] == ["measured before the end"]
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 1
    with tarfile.open(out / "smoke.tar.gz") as archive:
        first, *rest = json.load(archive.extractfile("results.json"))["results"]  # type: ignore[arg-type]
    assert first["problem"] == "the command was stopped"
    assert [figure["name"] for figure in first["figures"]] == ["measured before the end"]
    assert [(result["group"], result["case"], result["status"]) for result in rest] == [
        ("long", "comes after it", "not run"), ("behind", "(all cases)", "not run"),
        ("one by one", "(all cases)", "not run"),
    ]  # fmt: skip


BROKEN = """
import sys
from benchmarks.gpu import commands
from benchmarks.gpu.cases import Group
commands.KERNEL_MODULES = ("absent", "elementwise")
sys.exit(commands.main(["smoke", "--dry-run", "--only", "step inputs", "--out", sys.argv[1]]))
"""


@pytest.mark.thorough
def test_a_module_that_does_not_import_is_listed_and_the_others_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKEN, str(tmp_path / "out")]
    result = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=False)
    assert result.returncode == 1
    with tarfile.open(tmp_path / "out" / "smoke.tar.gz") as archive:
        results = json.load(archive.extractfile("results.json"))["results"]  # type: ignore[arg-type]
        tracebacks = archive.extractfile("tracebacks.txt").read().decode()  # type: ignore[union-attr]
    failed = [result for result in results if result["status"] != "ok"]
    assert [(result["group"], result["case"]) for result in failed] == [("benchmarks.gpu.smoke.absent", "(import)")]
    assert "No module named 'benchmarks.gpu.smoke.absent'" in failed[0]["problem"]
    assert "ModuleNotFoundError" in tracebacks
    assert {result["group"] for result in results if result["status"] == "ok"} == {"step inputs"}


def test_a_command_that_fails_leaves_its_archive(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["smoke", "--dry-run", "--cache", str(tmp_path / "absent"), "--out", str(out)]
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 1
    with tarfile.open(out / "smoke.tar.gz") as archive:
        (result,) = json.load(archive.extractfile("results.json"))["results"]  # type: ignore[arg-type]
    assert (result["case"], result["status"]) == ("(the command)", "failed")
    assert "absent" in result["problem"]
