"""A short storm on a real fleet. `make test` runs it alone on the machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.chaos import kept
from tests.chaos.draw import ROLL, parts_of
from tests.chaos.fleet import STORM as FLEET
from tests.chaos.history import Call, Fault, Skipped, read

ROOT = Path(__file__).parents[2]
# Faults of most kinds, and of parts of every kind.
STORM = kept.KEPT / "storm.json"


def test_a_fleet_loses_and_changes_nothing_while_its_parts_fail(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl.gz"
    # A process of its own: gRPC in this one may have been imported with its handlers of fork.
    # How long streams stand still depends on the machine: `make chaos` has a limit.
    options = ["--replay", str(STORM), "--history", str(history), "--max-rest", "inf"]
    command = ["-m", "tests.chaos", *options]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = list(read(history))
    # A rolling restart is a fault of each part.
    planned = Counter[str]()
    for fault in (fault for one in kept.read(STORM) for fault in one.faults):
        planned[fault.kind] += len(parts_of(FLEET, fault.target)) if fault.kind == ROLL else 1
    assert Counter(one.kind for one in records if isinstance(one, Fault | Skipped)) == planned
    assert {one.phase for one in records if isinstance(one, Call)} == {"calm", "storm", "after"}
