"""`make soak`, or `python -m benchmarks.soak`: sends mixed lawful traffic to a whole stack, with the rows of
benchmarks.abuse in it, and measures what each part holds at quiet points. Prints the table, and keeps it in
benchmarks/results/ if it took 30 minutes or more. The status is 1 if there was a fault."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.abuse.rows import ROWS
from benchmarks.abuse.stack import running_stack
from benchmarks.run import RESULTS
from benchmarks.soak.figures import Identity, alive
from benchmarks.soak.report import Result, store, summary
from benchmarks.soak.run import Plan, Soak, Stretch

# A shorter run is not kept: its warm-up is too short for all rows.
KEPT_MINUTES = 30.0
WARM_UP = 0.2
# Of KV cache: so few that cached ones are evicted and sequences preempted all the time.
NUM_BLOCKS = 4096
# Between two quiet points.
STRETCH_MINUTES = 5.0
# For the children of a stopped part to end.
END_LIMIT_S = 60.0


def stretches(minutes: float) -> Sequence[Stretch]:
    """The warm-up, and two stretches or more. The warm-up of a run that is kept has every row in it, however slow the
    machine is: a row leaves the allocator with more memory when it comes for the first time."""
    rest = (1 - WARM_UP) * minutes
    count = max(2, round(rest / STRETCH_MINUTES))
    rows = len(ROWS) if minutes >= KEPT_MINUTES else 0
    return [Stretch(60 * WARM_UP * minutes, rows=rows), *[Stretch(60 * rest / count)] * count]


def soak(plan: Plan) -> Result:
    """Starts a stack with the bundled model, runs the plan, and stops the stack."""
    with running_stack("--num-gpu-blocks-override", str(NUM_BLOCKS)) as stack:
        running = Soak(stack, plan)
        asyncio.run(running.run())
    return Result(running.points, running.peaks, running.tally, running.is_warm, _num_left(running.processes))


def _num_left(processes: set[Identity]) -> int:
    """How many have not ended when they have had time to."""
    end = time.monotonic() + END_LIMIT_S
    while (left := alive(processes)) and time.monotonic() < end:
        time.sleep(0.1)
    return len(left)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of traffic, quiet points not counted; default: 30")
    parser.add_argument("--clients", type=int, default=8, help="clients of lawful requests; default: 8")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic and of the rows' order; default: 1")
    parser.add_argument(
        "--out", type=Path, help="folder for soak.json and soak.md; default: none for fewer than 30 minutes"
    )
    arguments = parser.parse_args()
    plan = Plan(stretches(arguments.minutes), ROWS, clients=arguments.clients, seed=arguments.seed)
    result = soak(plan)
    print(f"\n{summary(result)}")
    out = arguments.out or (RESULTS if arguments.minutes >= KEPT_MINUTES else None)
    if out is not None:
        store(result, out)
    return 1 if result.faults or result.growth else 0


if __name__ == "__main__":
    sys.exit(main())
