"""Tests the table of `make test-steady`, and runs one setting."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.steady import __main__ as steady
from tests.steady import processes
from tests.steady.__main__ import ROOT, run
from tests.steady.report import Record, Run, read_run, table
from tests.steady.settings import SETTINGS, Setting

XML = """<testsuites><testsuite>
  <testcase classname="tests.a" name="test_passes"/>
  <testcase classname="tests.a" name="test_is_skipped"><skipped/></testcase>
  <testcase classname="tests.a" name="test_fails"><failure/></testcase>
  <testcase classname="tests.b" name="test_cannot_begin"><error/></testcase>
  <testcase classname="tests.b" name="test_cannot_begin"><failure/></testcase>
</testsuite></testsuites>"""


def test_failures_and_errors_of_a_run_are_read(tmp_path: Path) -> None:
    (tmp_path / "xml").write_text(XML)
    assert read_run("as in CI", tmp_path / "xml", 1) == Run(
        "as in CI", 4, ("tests.a::test_fails", "tests.b::test_cannot_begin")
    )


@pytest.mark.parametrize("status", [0, 2, 5, -9])
def test_a_run_without_tests_has_failed_whatever_its_status(tmp_path: Path, status: int) -> None:
    assert read_run("as in CI", tmp_path / "absent", status).failed == (f"(pytest ended with status {status})",)


def test_the_table_counts_by_setting_and_names_what_failed() -> None:
    runs = [
        Run("as in CI", 8, (), "a"),
        Run("on one core", 8, ("a", "b"), "a"),
        Run("as in CI", 8, (), "b"),
        Run("on one core", 7, ("a",), "a"),
    ]
    assert table(runs).splitlines() == [
        "setting     | runs | tests | failures | commits",
        "as in CI    | 2    | 16    | 0        | a, b",
        "on one core | 2    | 15    | 3        | a",
        "on one core: a failed in 2 of 2",
        "on one core: b failed in 1 of 2",
    ]


def test_a_run_takes_place_in_its_setting(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os\n"
        "def test_has_one_core():\n    assert len(os.sched_getaffinity(0)) == 1\n"
        "def test_has_a_neighbour():\n"
        "    found = [open(f'/proc/{pid}/cmdline').read() for pid in os.listdir('/proc') if pid.isdigit()]\n"
        "    assert any('while True: pass' in words for words in found)\n"
        "def test_fails():\n    assert False, 'on purpose'\n"
    )
    options = ("-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path))
    setting = Setting("hard", is_on_one_core=True, num_busy_loops=1)
    result = run(setting, options, tmp_path / "hard-1")
    assert replace(result, commit="") == Run("hard", 3, ("test_it::test_fails",))
    assert "on purpose" in (tmp_path / "hard-1.log").read_text()


def test_a_count_goes_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def made_run(setting: Setting, options: Sequence[str], out: Path) -> Run:
        if len(made) == 4:
            made.append("interrupted")
            raise KeyboardInterrupt
        made.append(out.name.removesuffix(f"-{os.getpid()}"))
        return Run(setting.name, 1, ())

    monkeypatch.setattr(steady, "run", made_run)
    arguments = ["--runs", "2", "--out", str(tmp_path), "-m", "processes"]
    assert steady.main(arguments) == 1
    assert steady.main(arguments) == 0
    settings = [setting.name.replace(" ", "-") for setting in SETTINGS]
    first, second = ([f"{name}-{number}" for name in settings] for number in (1, 2))
    assert made == [*first, second[0], "interrupted", *second[1:]]


def test_a_record_with_other_options_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(tmp_path / "runs.jsonl", ["--numprocesses=3", "-m", "processes"])
    record.add(Run("as in CI", 1, ()))
    before = record.path.read_text()
    with pytest.raises(SystemExit):
        steady.main(["--out", str(tmp_path), "--numprocesses=3", "-m", "others"])
    assert "has runs with other options of pytest" in capsys.readouterr().err
    assert record.path.read_text() == before
    # Another machine has other cores.
    assert not Record(record.path, ["--numprocesses=9", "-m", "processes"]).is_of_other_options()


def test_two_commands_may_share_the_record_of_one_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--runs", "3", "--out", str(tmp_path), "--setting", "on one core"]
    record = Record(tmp_path / "runs.jsonl", [])

    def run_beside_another(setting: Setting, options: Sequence[str], out: Path) -> Run:
        record.add(Run(setting.name, 1, (), "the other's"))
        return Run(setting.name, 1, (), "ours")

    monkeypatch.setattr(steady, "run", run_beside_another)
    assert steady.main(arguments) == 0
    assert [one.commit for one in record.runs()] == ["the other's", "ours"] * 2


def test_the_three_settings_are_those_of_the_documentation() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    assert all(f"| {setting.name} |" in text for setting in SETTINGS)


def test_tests_that_start_processes_are_known() -> None:
    tests = ROOT / "tests"
    for name in (
        "e2e/test_recovery.py",
        "integration/gateway/test_http.py",
        "integration/router/test_chat.py",
        "unit/cli/test_supervisor.py",
        "unit/gpu_benchmark/test_first_hour.py",
        "unit/offline/test_llm.py",
    ):
        assert processes.starts_processes(tests / name), name
    for name in ("unit/scheduler/test_core.py", "unit/worker/ops/test_attention.py", "unit/router/test_requests.py"):
        assert not processes.starts_processes(tests / name), name
