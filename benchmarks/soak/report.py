"""Writes the results of a soak test as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.record import in_words, provenance
from benchmarks.soak import verdict
from benchmarks.soak.figures import Figures, Point
from benchmarks.soak.run import SAMPLE_S
from benchmarks.soak.tally import Tally

_HEAD = (
    "part", "MB at first", "at last", "at most", "bytes per request", "descriptors at first", "at last", "at most",
    "sockets at first", "at last", "threads at first", "at last", "processes at first", "at last",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    # Quiet points. The first one is at the end of the warm-up.
    points: Sequence[Point]
    peaks: Mapping[str, Figures]
    tally: Tally
    # Whether the warm-up had every row. If not, the growth of resident memory is not judged.
    is_warm: bool
    # Number of child processes that outlived their part.
    num_left: int

    @property
    def faults(self) -> list[str]:
        """Wrong answers, by name with their number, and resources that should have been released."""
        wrong = [f"{name}: {count} wrong" for name, count in self.tally.faults.items()]
        left = [f"{self.num_left} processes are still alive"] if self.num_left else []
        return [*wrong, *verdict.held(self.points), *left, *verdict.too_large(self.peaks)]

    @property
    def growth(self) -> list[str]:
        """Resources that have grown beyond their bounds."""
        return verdict.grown(self.points, judges_memory=self.is_warm)


def table(result: Result) -> str:
    lines = [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}"]
    for part, growth in verdict.growths(result.points).items():
        first, last, peak = growth.first, growth.last, result.peaks[part]
        cells = (
            part,
            *(f"{one.resident_bytes / 1e6:.1f}" for one in (first, last, peak)),
            f"{growth.bytes_per_request:.0f}",
            *(str(one.descriptors) for one in (first, last, peak)),
            *(str(one.sockets) for one in (first, last)),
            *(str(one.threads) for one in (first, last)),
            *(str(one.processes) for one in (first, last)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(result: Result) -> str:
    """Returns the table with sentences about the traffic, the resources at the end and the faults."""
    first, last, tally = result.points[0], result.points[-1], result.tally
    load = last.load
    faults = [*result.faults, *result.growth]
    paragraphs = [
        f"{last.seconds / 60:.0f} minutes: {tally.answered.total():,} requests and {tally.rows.total():,} rows"
        f" of the abuse got correct answers. {last.requests - first.requests:,} of them were sent between the first and"
        f" the last of {len(result.points)} quiet points. {tally.num_compared:,} answers were compared with the"
        f" first one of the same request. The server was busy {tally.num_busy:,} times.",
        f"At the end, {load.used_blocks} of {load.blocks} KV blocks and {load.running + load.waiting} sequences were"
        f" not released, and {result.num_left} processes outlived their part.",
        table(result),
        *(() if result.is_warm else ("Growth in memory is not judged: the warm-up was too short for all rows.",)),
        "Faults: none." if not faults else "Faults:\n\n" + "\n".join(f"- {fault}" for fault in faults),
    ]
    if tally.examples:
        paragraphs.append(
            "Examples:\n\n" + "\n".join(f"- `{example.replace('`', chr(39))}`" for example in tally.examples)
        )
    return "\n\n".join(paragraphs)


def store(result: Result, directory: Path) -> None:
    """Writes soak.json and soak.md."""
    directory.mkdir(parents=True, exist_ok=True)
    record = {
        **provenance(),
        "limits": {
            "bytes_per_request": verdict.MAX_BYTES_PER_REQUEST,
            "allocator_bytes": verdict.ALLOCATOR_BYTES,
            "added_descriptors": verdict.MAX_ADDED_DESCRIPTORS,
            "added_threads": verdict.MAX_ADDED_THREADS,
            "added_processes": verdict.MAX_ADDED_PROCESSES,
            "router_bytes": verdict.MAX_ROUTER_BYTES,
        },
        "answered": dict(result.tally.answered),
        "rows": dict(result.tally.rows),
        "busy": result.tally.num_busy,
        "compared": result.tally.num_compared,
        "bytes_per_request": {
            part: growth.bytes_per_request for part, growth in verdict.growths(result.points).items()
        },
        "points": [asdict(point) for point in result.points],
        "peaks": {part: asdict(peak) for part, peak in result.peaks.items()},
        "processes_left": result.num_left,
        "faults": [*result.faults, *result.growth],
        "examples": result.tally.examples,
    }
    (directory / "soak.json").write_text(json.dumps(record, indent=2) + "\n")
    head = f"# Soak test: mixed traffic together with the abuse\n\n{_EXPLANATION}\n\n{in_words(record)}."
    (directory / "soak.md").write_text(f"{head}\n\n{summary(result)}\n")


_EXPLANATION = f"""\
`make soak` writes this file. Eight clients send requests of every API, one after another. At the same time, the rows of
`make abuse` are repeated in random order. The KV cache is small, so that cached blocks are evicted and sequences
preempted. From time to time all clients pause. At such a quiet point, each part is measured together with its children.
First: at the end of the warm-up, which takes a fifth of the time and has every row. Last: at the end. Most: the maximum
of samples every {SAMPLE_S:.0f} s. Faults are wrong answers, blocks or sequences that are held at a quiet point,
processes that outlive their part, a router of more than {verdict.MAX_ROUTER_BYTES / 1e6:.0f} MB, and growth from the
first point to the last: more than
{verdict.MAX_BYTES_PER_REQUEST:.0f} bytes per request plus {verdict.ALLOCATOR_BYTES / 1e6:.0f} MB for fragmentation in
the allocator, or more than {verdict.MAX_ADDED_DESCRIPTORS} descriptors, {verdict.MAX_ADDED_THREADS} threads or
{verdict.MAX_ADDED_PROCESSES} processes added."""
