"""How long clients' streams stood still because of each fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tests.chaos.history import Call, Fault, Record


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Figures of all faults of one kind. Pauses are in seconds."""

    kind: str
    count: int
    # Number of calls that were under way when a fault began.
    calls: int
    # The longest pause of any stream at each fault, beyond the longest one of the same request without faults.
    median_pause: float
    worst_pause: float
    # Calls under way during a fault of this kind that were lost, different or hung; and those excused.
    failed: int
    excused: int


def by_kind(records: Sequence[Record], broken: Mapping[str, str]) -> list[KindFigures]:
    """Returns the figures of each kind of fault. `broken`: what became of calls that were not answered, by id."""
    calls = [record for record in records if isinstance(record, Call)]
    usual = usual_gaps(calls)
    storm = [call for call in calls if call.phase != "calm"]
    faults: defaultdict[str, list[Fault]] = defaultdict(list)
    for record in records:
        if isinstance(record, Fault):
            faults[record.kind].append(record)
    return [_figures(kind, faults[kind], storm, usual, broken) for kind in sorted(faults)]


def _figures(
    kind: str, faults: Sequence[Fault], calls: Sequence[Call], usual: Mapping[str, float], broken: Mapping[str, str]
) -> KindFigures:
    pauses: list[float] = []
    met: set[str] = set()
    for fault in faults:
        under_way = [call for call in calls if call.start <= fault.end and call.end >= fault.start]
        met.update(call.id for call in under_way)
        pauses.append(max((pause(call, fault, usual.get(call.request, 0.0)) for call in under_way), default=0.0))
    ends = [broken[id_] for id_ in met if id_ in broken]
    excused = ends.count("excused")
    return KindFigures(kind, len(faults), len(met), median(pauses), max(pauses), len(ends) - excused, excused)


def usual_gaps(calls: Iterable[Call]) -> dict[str, float]:
    """Returns the longest gap of each request's streams in the calm phase, in seconds."""
    longest: dict[str, float] = {}
    for call in calls:
        if call.phase == "calm":
            for start, end in _gaps(call):
                longest[call.request] = max(longest.get(call.request, 0.0), end - start)
    return longest


def pause(call: Call, fault: Fault, usual: float) -> float:
    """Returns the longest gap of the stream that overlaps the fault, minus the usual one; 0 if it is not longer."""
    gaps = [end - start for start, end in _gaps(call) if start <= fault.end and end >= fault.start]
    return max(0.0, max(gaps, default=0.0) - usual)


def _gaps(call: Call) -> Iterator[tuple[float, float]]:
    """Yields the times between two events of a stream, and between the request and the first one. Answers that came
    whole have none."""
    if len(call.events) > 1:
        yield from pairwise([call.start, *(event.at for event in call.events)])
