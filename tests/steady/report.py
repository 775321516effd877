"""Results of the runs: read from pytest's XML, recorded in a file, and printed as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

# pytest's exit statuses: all tests passed, some failed. Any other status means that the run itself failed.
PASSED, SOME_FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest. `failed`: names of failed tests, without duplicates. `commit`: commit of the tested tree."""

    setting: str
    num_tests: int
    failed: tuple[str, ...]
    commit: str = ""


class Record:
    """File with the finished runs, one JSON object per line, so that a command of hours can continue after an
    interruption.

    `options`: options for pytest. All runs in a file have the same ones, the number of processes left out: that of a
    machine depends on its cores.
    """

    def __init__(self, path: Path, options: Sequence[str]) -> None:
        self.path = path
        same = [option for option in options if not option.startswith("--numprocesses")]
        self._head = json.dumps({"options": same})

    def is_of_other_options(self) -> bool:
        return self.path.exists() and self.path.read_text().partition("\n")[0] != self._head

    def runs(self) -> list[Run]:
        if not self.path.exists():
            return []
        fields = map(json.loads, self.path.read_text().splitlines()[1:])
        return [Run(**{**one, "failed": tuple(one["failed"])}) for one in fields]

    def add(self, run: Run) -> None:
        """Appends a run. Several commands may share one file."""
        head = "" if self.path.exists() else f"{self._head}\n"
        with self.path.open("a") as file:
            file.write(f"{head}{json.dumps(asdict(run))}\n")


def read_run(setting: str, xml: Path, status: int) -> Run:
    """Reads the result of one run. `status`: pytest's exit status. A run without tests counts as failed."""
    cases = list(ElementTree.parse(xml).iter("testcase")) if xml.exists() else []
    failed = {_name(case) for case in cases if any(child.tag in ("failure", "error") for child in case)}
    num_skipped = sum(case.find("skipped") is not None for case in cases)
    if status not in (PASSED, SOME_FAILED) or (status == SOME_FAILED) != bool(failed) or not cases:
        failed.add(f"(pytest ended with status {status})")
    return Run(setting, len(cases) - num_skipped, tuple(sorted(failed)))


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def table(runs: Sequence[Run]) -> str:
    """Returns a line per setting, in the order of their first runs, and a line per failed test."""
    rows = [("setting", "runs", "tests", "failures", "commits")]
    for setting in dict.fromkeys(run.setting for run in runs):
        own = [run for run in runs if run.setting == setting]
        num_tests, num_failures = sum(run.num_tests for run in own), sum(len(run.failed) for run in own)
        commits = ", ".join(dict.fromkeys(run.commit for run in own))
        rows.append((setting, str(len(own)), str(num_tests), str(num_failures), commits))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    failures = Counter((run.setting, name) for run in runs for name in run.failed)
    num_runs = Counter(run.setting for run in runs)
    lines += [
        f"{setting}: {name} failed in {count} of {num_runs[setting]}" for (setting, name), count in failures.items()
    ]
    return "\n".join(lines)
