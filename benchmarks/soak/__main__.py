"""`make soak`, or `python -m benchmarks.soak`: sends mixed traffic and the rows of benchmarks.abuse to a whole
stack, and measures the resources of each part at quiet points. Prints the table, and stores it in benchmarks/results/
if the run took 30 minutes or more. The exit status is 1 if there was a fault."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.abuse.rows import ROWS
from benchmarks.abuse.stack import running_stack
from benchmarks.record import RESULTS
from benchmarks.soak.figures import Identity, alive
from benchmarks.soak.report import Result, store, summary
from benchmarks.soak.run import Plan, Soak, Stretch

# The results of a shorter run are not stored, because its warm-up is too short for all rows.
KEPT_MINUTES = 30.0
WARM_UP = 0.2
# Number of KV blocks: so few that blocks are evicted and sequences preempted all the time.
NUM_BLOCKS = 4096
# Minutes between two quiet points.
STRETCH_MINUTES = 5.0
# Seconds to wait for a stopped part's children to end.
END_LIMIT_S = 60.0


def stretches(minutes: float) -> Sequence[Stretch]:
    """Returns the warm-up and at least two further stretches. If the results are stored, the warm-up has every row,
    even on a slow machine, because a row's first run leaves the allocator with more memory."""
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
    """Waits up to END_LIMIT_S for the processes to end. Returns the number of processes that are still alive."""
    end = time.monotonic() + END_LIMIT_S
    while (left := alive(processes)) and time.monotonic() < end:
        time.sleep(0.1)
    return len(left)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="minutes of traffic, without quiet points; default: 30"
    )
    parser.add_argument("--clients", type=int, default=8, help="number of clients that send the traffic; default: 8")
    parser.add_argument(
        "--seed", type=int, default=1, help="random seed of the traffic and of the order of rows; default: 1"
    )
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
