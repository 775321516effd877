"""What a soak found, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.run import in_words, provenance
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
    # Quiet points, the first of them at the end of the warm-up.
    points: Sequence[Point]
    peaks: Mapping[str, Figures]
    tally: Tally
    # Whether the warm-up had every row in it. If not, what resident memory grows by means little.
    is_warm: bool
    # Processes of the parts that outlived the parts.
    num_left: int

    @property
    def faults(self) -> list[str]:
        """Wrong answers by name and number, and what is left where nothing may be."""
        wrong = [f"{name}: {count} wrong" for name, count in self.tally.faults.items()]
        left = [f"{self.num_left} processes are left"] if self.num_left else []
        return [*wrong, *verdict.held(self.points), *left]

    @property
    def growth(self) -> list[str]:
        """What has grown too much."""
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
    """Sentences around the table: what was sent, what is left, and the faults."""
    first, last, tally = result.points[0], result.points[-1], result.tally
    load = last.load
    faults = [*result.faults, *result.growth]
    paragraphs = [
        f"{last.seconds / 60:.0f} minutes: {tally.answered.total():,} lawful requests and {tally.rows.total():,} rows"
        f" of the abuse were answered as they should be. Between the first of {len(result.points)} quiet points and the"
        f" last were {last.requests - first.requests:,} of them. {tally.num_compared:,} answers were compared with the"
        f" first one of the same request. The server was busy {tally.num_busy:,} times.",
        f"At the end {load.used_blocks} of {load.blocks} KV blocks were not free, {load.running + load.waiting}"
        f" sequences were left, and {result.num_left} processes outlived their part.",
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
    head = f"# What mixed traffic with the abuse in it leaves behind\n\n{_EXPLANATION}\n\n{in_words(record)}."
    (directory / "soak.md").write_text(f"{head}\n\n{summary(result)}\n")


_EXPLANATION = f"""\
`make soak` writes this file. Eight clients send lawful requests of every API, one after another, and each row of
`make abuse` is sent beside them, again and again in a random order. The KV cache is small, so that cached blocks are
evicted and sequences preempted. All clients stop now and then. At such a quiet point each part is measured, its
children included. First: at the end of the warm-up, which takes a fifth of the time and has every row in it. Last: at
the end. Most: of samples every {SAMPLE_S:.0f} s. Faults are wrong answers, blocks or sequences that are held at a quiet
point, processes that outlive their part, and growth from the first point to the last: more than
{verdict.MAX_BYTES_PER_REQUEST:.0f} bytes per request and {verdict.ALLOCATOR_BYTES / 1e6:.0f} MB for the allocator's
holes, or more than {verdict.MAX_ADDED_DESCRIPTORS} descriptors, {verdict.MAX_ADDED_THREADS} threads or
{verdict.MAX_ADDED_PROCESSES} processes added."""
