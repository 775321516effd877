"""What came of the runs, read from the XML that pytest writes, and kept until all have been made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

# pytest's own exit statuses: all passed, some failed. Any other is a failure of the run itself.
PASSED, SOME_FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest. `failed`: names of tests, each once. `commit`: of the tree that was tested."""

    setting: str
    num_tests: int
    failed: tuple[str, ...]
    commit: str = ""


class Record:
    """The runs of one count, a line of JSON each, so that a count of hours goes on after an interruption.

    `options`: of pytest. A record of other options is another count, and is not read.
    """

    def __init__(self, path: Path, options: Sequence[str]) -> None:
        self.path = path
        self._head = json.dumps({"options": list(options)})

    def runs(self) -> list[Run]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if lines[:1] != [self._head]:
            return []
        fields = map(json.loads, lines[1:])
        return [Run(**{**one, "failed": tuple(one["failed"])}) for one in fields]

    def keep(self, runs: Sequence[Run]) -> None:
        """In one move: an end in the middle of it leaves the old record."""
        new = self.path.with_suffix(".new")
        new.write_text("\n".join((self._head, *(json.dumps(asdict(run)) for run in runs))) + "\n")
        new.replace(self.path)


def read_run(setting: str, xml: Path, status: int) -> Run:
    """`status`: pytest's exit status. A run that tested nothing has failed."""
    cases = list(ElementTree.parse(xml).iter("testcase")) if xml.exists() else []
    failed = {_name(case) for case in cases if any(child.tag in ("failure", "error") for child in case)}
    num_skipped = sum(case.find("skipped") is not None for case in cases)
    if status not in (PASSED, SOME_FAILED) or (status == SOME_FAILED) != bool(failed) or not cases:
        failed.add(f"(pytest ended with status {status})")
    return Run(setting, len(cases) - num_skipped, tuple(sorted(failed)))


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def table(runs: Sequence[Run]) -> str:
    """A line for each setting, in the order in which they ran first, and one for each test that failed."""
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
