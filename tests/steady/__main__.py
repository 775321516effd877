"""`python -m tests.steady --runs N PYTEST_OPTION...` runs pytest N times in each setting and prints the failures.

The exit status is 1 if any test failed in any run. build/steady keeps the output of runs with failures. The file
`--record` lists all finished runs: after an interruption, the same command continues from it.
"""

from __future__ import annotations

import argparse
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
        log.unlink()
    return result


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="number of runs in each setting")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "steady", help="directory for failed runs' output")
    parser.add_argument("--record", type=Path, help="file with the runs so far (default: runs.jsonl in --out)")
    known, options = parser.parse_known_args(arguments)
    known.out.mkdir(parents=True, exist_ok=True)
    record = Record(known.record or known.out / "runs.jsonl", options)
    runs = record.runs()
    num_done = Counter(run.setting for run in runs)
    if runs:
        print(f"continuing after {len(runs)} runs in {record.path}; delete this file to start over", flush=True)
    try:
        # Each round runs every setting, so that an interrupted command has tried all of them.
        for number in range(1, known.runs + 1):
            for setting in SETTINGS:
                if number <= num_done[setting.name]:
                    continue
                began = time.monotonic()
                out = known.out / f"{setting.name.replace(' ', '-')}-{number}"
                runs.append(run(setting, options, out))
                record.keep(runs)
                minutes = (time.monotonic() - began) / 60
                words = f"{len(runs[-1].failed)} failed: {out}.log" if runs[-1].failed else "all passed"
                print(f"{setting.name}, run {number} of {known.runs}: {words} ({minutes:.1f} minutes)", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
    print(table(runs))
    return 1 if len(runs) < known.runs * len(SETTINGS) or any(one.failed for one in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
