"""Writes the table as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.abuse.run import MAX_ADDED_S, MAX_ROUTER_MB, MAX_WAIT_S, Measurement
from benchmarks.record import RESULTS, in_words, provenance

PARTS = ("router", "gateway", "scheduler", "worker")
_TIMES = ("gap without, ms", "gap with, ms", "wait without, ms", "wait with, ms")
_HEAD = ("row", "copies", *_TIMES, *(f"{part}, MB" for part in PARTS), "answer", "verdict")


def line(measurement: Measurement) -> str:
    """Returns a row of the Markdown table."""
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
`make abuse` writes this file. A well-behaved client keeps streaming while each row is sent, once and in eight parallel
copies. Gap: the longest time between two pieces of its streams. Wait: the longest time between its request and the
first piece. Both are measured without the row (before and after it) and with it. Memory: the peak resident memory of a
part and its children, in MB; what they share counts once. A verdict is `ok` if gap and wait grow by at most
{1e3 * MAX_ADDED_S:.0f} ms, the router stays below {MAX_ROUTER_MB:.0f} MB, the answer is correct for the row, and the
client's streams are complete and correct. If a row has more requests than the server runs at once (256), other clients
must wait. Then the wait must be at most {MAX_WAIT_S:.0f} s."""
