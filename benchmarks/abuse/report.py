"""The table, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.abuse.run import MAX_ADDED_S, MAX_ROUTER_MB, Measurement
from benchmarks.run import RESULTS, in_words, provenance

PARTS = ("router", "gateway", "scheduler", "worker")
_TIMES = ("gap without, ms", "gap with, ms", "wait without, ms", "wait with, ms")
_HEAD = ("row", "copies", *_TIMES, *(f"{part}, MB" for part in PARTS), "answer", "verdict")


def line(measurement: Measurement) -> str:
    """A row of a Markdown table."""
    cells = (
        measurement.row,
        str(measurement.copies),
        f"{1e3 * measurement.gap_without:.0f}",
        f"{1e3 * measurement.gap_with:.0f}",
        f"{1e3 * measurement.wait_without:.0f}",
        f"{1e3 * measurement.wait_with:.0f}",
        *(f"{measurement.peak_mb[part]:.0f}" for part in PARTS),
        f"{measurement.status} after {measurement.seconds:.1f} s: {measurement.answer}",
        "; ".join(measurement.faults) or "ok",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def head() -> str:
    return f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}"


def store(measurements: Sequence[Measurement], directory: Path = RESULTS) -> None:
    """Writes abuse.json and abuse.md."""
    record = {
        **provenance(),
        "limits": {"added_s": MAX_ADDED_S, "router_mb": MAX_ROUTER_MB},
        "rows": [asdict(measurement) for measurement in measurements],
    }
    (directory / "abuse.json").write_text(json.dumps(record, indent=2) + "\n")
    table = "\n".join((head(), *map(line, measurements)))
    (directory / "abuse.md").write_text(
        f"# What one client does to another\n\n{_EXPLANATION}\n\n{in_words(record)}.\n\n{table}\n"
    )


_EXPLANATION = f"""\
`make abuse` writes this file. A well-behaved client keeps streaming while each row is sent once, and eight times at
once. Gap: the longest time between two pieces of its streams; wait: the longest time between its request and the first
piece; both without the row (before and after it) and with it. Memory: the most that a part and its children held, in
resident MB. A verdict is `ok` where at most {1e3 * MAX_ADDED_S:.0f} ms are added to both, the router stays below
{MAX_ROUTER_MB:.0f} MB, the answer is one that the row may have, and the client's streams are whole and right. Where a
row is more requests than there are places (256), others wait for one, and the wait is only shown."""
