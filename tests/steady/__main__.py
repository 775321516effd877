"""`python -m tests.steady --runs N PYTEST_OPTION...` runs pytest N times in each setting and prints the failures.

The exit status is 1 if any test failed in any run. build/steady keeps the output of runs with failures. The file
`--record` lists all finished runs: after an interruption, the same command continues from it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.tree import commit
from tests.steady.report import Record, Run, read_run, table
from tests.steady.settings import SETTINGS, Setting

ROOT = Path(__file__).parents[2]


def run(setting: Setting, options: Sequence[str], out: Path) -> Run:
    """Runs pytest once. Keeps its output in `out` with the suffix `.log` if a test failed."""
    log, xml = out.with_suffix(".log"), out.with_suffix(".xml")
    xml.unlink(missing_ok=True)
    tested = commit()
    command = [sys.executable, "-m", "pytest", *options, *setting.options, f"--junitxml={xml}"]
    with setting.neighbours(), log.open("w") as file:
        status = subprocess.run(
            command, cwd=ROOT, stdout=file, stderr=file, preexec_fn=setting.take_core, check=False
        ).returncode
    result = replace(read_run(setting.name, xml, status), commit=tested)
    xml.unlink(missing_ok=True)
    if not result.failed:
        log.unlink(missing_ok=True)
    return result


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="number of runs in each setting")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "steady", help="directory for failed runs' output")
    parser.add_argument("--record", type=Path, help="file with the runs so far (default: runs.jsonl in --out)")
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--setting", choices=names, help="run only this setting; each of two commands can have a core")
    known, options = parser.parse_known_args(arguments)
    known.out.mkdir(parents=True, exist_ok=True)
    record = Record(known.record or known.out / "runs.jsonl", options)
    if record.is_of_other_options():
        parser.error(f"{record.path} has runs with other options of pytest; name another file, or delete it")
    settings = [setting for setting in SETTINGS if known.setting in (None, setting.name)]
    if runs := record.runs():
        print(f"continuing after {len(runs)} runs in {record.path}; delete this file to start over", flush=True)
    try:
        while (setting := _next_setting(settings, record, known.runs)) is not None:
            began = time.monotonic()
            number = _num_runs(record)[setting.name] + 1
            # Another command may run the same setting at the same time.
            out = known.out / f"{setting.name.replace(' ', '-')}-{number}-{os.getpid()}"
            result = run(setting, options, out)
            record.add(result)
            minutes = (time.monotonic() - began) / 60
            words = f"{len(result.failed)} failed: {out}.log" if result.failed else "all passed"
            print(f"{setting.name}, run {number} of {known.runs}: {words} ({minutes:.1f} minutes)", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
    runs = record.runs()
    print(table(runs))
    return 1 if _next_setting(settings, record, known.runs) is not None or any(one.failed for one in runs) else 0


def _next_setting(settings: Sequence[Setting], record: Record, num_runs: int) -> Setting | None:
    """Returns the setting with the fewest runs, so that an interrupted command has tried all of them; None if each has
    `num_runs`."""
    fewest = min(settings, key=lambda setting: _num_runs(record)[setting.name])
    return fewest if _num_runs(record)[fewest.name] < num_runs else None


def _num_runs(record: Record) -> Counter[str]:
    return Counter(run.setting for run in record.runs())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
