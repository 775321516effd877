"""`make abuse`, or `python -m benchmarks.abuse [WORD ...]`: measures all rows, or the rows whose names have one of the
words. Prints the table, and stores it in benchmarks/results/ if it has all rows."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.abuse.attack import Row
from benchmarks.abuse.report import head, line, store
from benchmarks.abuse.rows import ROWS
from benchmarks.abuse.run import measure
from benchmarks.record import RESULTS


async def run(rows: Sequence[Row], out: Path | None) -> bool:
    """Measures the rows and prints the table. Returns whether all verdicts are ok."""
    measurements = []
    print(head())
    async for measurement in measure(rows):
        measurements.append(measurement)
        print(line(measurement), flush=True)
    if out is not None:
        store(measurements, out)
    failed = [measurement for measurement in measurements if measurement.faults]
    print(f"\n{len(measurements) - len(failed)} of {len(measurements)} ok")
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.abuse", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure the rows whose names have one of these words; default: all")
    parser.add_argument("--list", action="store_true", help="print the rows' names and stop")
    parser.add_argument(
        "--out", type=Path, help="folder for abuse.json and abuse.md; default: benchmarks/results, or none with words"
    )
    arguments = parser.parse_args()
    rows = [row for row in ROWS if not arguments.words or any(word in row.name for word in arguments.words)]
    if arguments.list:
        print("\n".join(row.name for row in rows))
        return 0
    return 0 if asyncio.run(run(rows, arguments.out or (None if arguments.words else RESULTS))) else 1


if __name__ == "__main__":
    sys.exit(main())
