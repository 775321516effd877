"""A case that fails, in whatever way, costs the others nothing, and what was measured is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks.gpu.archive import Record, table
from benchmarks.gpu.cases import Group, Setting
from benchmarks.gpu.supervisor import Supervisor
from tests.bare_tree import ROOT

MODULE = "tests.unit.gpu_benchmark.failing_cases"


def run(folder: Path, name: str, limit_s: float) -> tuple[Record, Supervisor]:
    record = Record(folder, "trial", {"commit": "abc"})
    supervisor = Supervisor(Setting(), record.logs, time.monotonic() + 300, record)
    supervisor.run([Group(MODULE, name, limit_s)], num_processes=2)
    return record, supervisor


@pytest.mark.timeout(600)  # six processes are started
def test_a_case_that_fails_is_listed_and_the_others_run(tmp_path: Path) -> None:
    record, supervisor = run(tmp_path, "one by one", limit_s=5.0)
    found = {result.case: result for result in supervisor.results}
    assert [name for name, result in found.items() if result.status == "ok"] == [
        "brings an error bound", "brings figures", "runs after a hang", "runs in a fresh context",
    ]  # fmt: skip
    assert found["brings an error bound"].error == 1e-3
    assert [figure.value for figure in found["brings figures"].figures] == [0.0, 1.0, 2.0]
    assert found["raises"].problem == "ValueError: a kernel is wrong"
    assert "in _raise" in found["raises"].traceback
    assert found["hangs"].problem == "it took longer than 5 s"
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


@pytest.mark.timeout(600)
def test_a_group_that_does_not_load_is_a_failure(tmp_path: Path) -> None:
    _, supervisor = run(tmp_path, "does not load", limit_s=5.0)
    (failed,) = supervisor.results
    assert (failed.status, failed.problem) == ("failed", "ImportError: there is no such kernel")


COMMAND = f"""
import sys
from benchmarks.gpu import commands
from benchmarks.gpu.cases import Group
commands._smoke_stages = lambda setting: [commands.Stage("long", [Group("{MODULE}", "long", 600.0)], 1)]
sys.exit(commands.main(["smoke", "--dry-run", "--out", sys.argv[1]]))
"""


@pytest.mark.timeout(600)
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
        (result,) = json.load(archive.extractfile("results.json"))["results"]  # type: ignore[arg-type]
    assert result["problem"] == "the command was ended"
    assert [figure["name"] for figure in result["figures"]] == ["measured before the end"]
