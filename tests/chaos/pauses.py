"""How long clients' streams stood still because of each fault, and how much longer answers took that came whole.

A pause is a gap between two events of a stream, beyond the longest gap of the same request without faults. Faults
overlap, and each pause counts for one of them: the first one that began during the gap; if none did, the last one that
began before it and was not over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tests.chaos.draw import DOWN, GRACEFUL, KILL, KILL_ALL, MEMORY, STALL, STOP, reaches_worker
from tests.chaos.fleet import Shape
from tests.chaos.history import Call, Fault, Record, Served

# While such a fault lasts, nobody can be served through its part or link.
_BLOCKING = {KILL, KILL_ALL, STOP, DOWN, STALL, MEMORY, *GRACEFUL}


Gaps = Callable[[Call], Iterable[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Figures of all faults of one kind. Pauses are in seconds."""

    kind: str
    count: int
    # Number of calls that were under way when a fault began.
    calls: int
    # The longest pause of any stream that each fault caused.
    median_pause: float
    worst_pause: float
    # Calls under way during a fault of this kind that were lost, different or hung; and those excused.
    failed: int
    excused: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of one stream. Times are seconds since the run's start."""

    call: str  # its id
    request: str
    start: float
    end: float
    # Beyond the longest gap of the same request without faults.
    seconds: float
    # Seconds of it in which faults left nobody who could have served this call.
    without_service: float
    # All faults that began or lasted during the pause, in the order in which they began.
    faults: tuple[Fault, ...]

    @property
    def rest(self) -> float:
        """Seconds that the fleet took although somebody could have served the call."""
        return self.seconds - self.without_service


def _gaps(call: Call) -> Iterator[tuple[float, float]]:
    """Yields the times between two events of a stream, and between the request and the first one. Answers that came
    whole have none."""
    if len(call.events) > 1:
        yield from pairwise([call.start, *(event.at for event in call.events)])


def _whole(call: Call) -> Iterator[tuple[float, float]]:
    """Yields the time of an answer that came whole."""
    if len(call.events) == 1 and call.outcome == "ended" and call.status == 200:
        yield call.start, call.events[0].at


def longest_pauses(records: Sequence[Record], number: int, shape: Shape) -> list[Pause]:
    """Returns the longest pauses, the longest first. Of pauses that overlap in time, only the longest counts."""
    found: list[Pause] = []
    for pause in _pauses(records, shape):
        if len(found) == number:
            break
        if all(pause.end < other.start or other.end < pause.start for other in found):
            found.append(pause)
    return found


def standstills(records: Sequence[Record], max_rest: float, shape: Shape) -> list[Pause]:
    """Returns every pause in which the fleet took longer than `max_rest` seconds although somebody could have served
    the call, the longest pause first. Nobody sees the pauses of an answer that comes whole: it may take `max_rest`
    seconds more, or two times `max_rest` if it met several faults."""
    pauses, delays = _pauses(records, shape, least=max_rest), delays_of_whole_answers(records, shape, least=max_rest)
    return [
        *(pause for pause in pauses if pause.rest > max_rest),
        *(delay for delay in delays if delay.rest > max_rest * (2 if len(delay.faults) > 1 else 1)),
    ]


def delays_of_whole_answers(records: Sequence[Record], shape: Shape, least: float = 0.0) -> Iterator[Pause]:
    """Yields how much longer answers took that came whole, as if each was a pause, the longest first. `least`: only
    those that are longer, in seconds."""
    return _pauses(records, shape, _whole, least)


def _pauses(records: Sequence[Record], shape: Shape, gaps_of: Gaps = _gaps, least: float = 0.0) -> Iterator[Pause]:
    """Yields all pauses since the first fault, the longest first. `gaps_of`: what counts as the gaps of a call.
    `least`: only pauses that are longer, in seconds."""
    calls = [record for record in records if isinstance(record, Call)]
    usual = usual_gaps(calls, gaps_of)
    routers = {record.id: record.router for record in records if isinstance(record, Served)}
    faults = sorted((record for record in records if isinstance(record, Fault)), key=lambda fault: fault.start)
    gaps = [
        (end - start - usual.get(call.request, 0.0), start, end, call)
        for call in calls
        if call.phase != "calm"
        for start, end in gaps_of(call)
    ]
    for seconds, start, end, call in sorted(gaps, key=lambda gap: gap[:3], reverse=True):
        if seconds <= least:
            return
        under_way = tuple(fault for fault in faults if fault.start <= end and start <= fault.end)
        lacked = min(seconds, without_service(call, routers.get(call.id), start, end, under_way, shape))
        yield Pause(call.id, call.request, start, end, seconds, lacked, under_way)


def without_service(
    call: Call, router: str | None, start: float, end: float, faults: Sequence[Fault], shape: Shape
) -> float:
    """Returns the seconds between two times in which nobody could have served the call: its gateway or router was down,
    suspended or cut off, or no worker of its model was in reach. A call without an answer so far could also have been
    sent to the other gateways and routers, unless its gateway holds it: a suspended one does, and one of the last
    release that drains. The client of a gRPC call waits for its gateway, whatever has happened to that. `router`: which
    served it; None: unknown. A part that is told to end serves the calls that it has begun to answer."""
    group = next(group for group in shape.groups if call.request.endswith(f"({group.model})"))
    has_begun = any(event.at <= start for event in call.events)
    is_held = call.request.startswith("gRPC ") or any(
        (fault.kind == STOP or fault.was_last_release) and call.gateway in fault.targets for fault in faults
    )
    gateways = [call.gateway] if has_begun or is_held else shape.names("gateway")
    routers = [router] if has_begun and router is not None else shape.names("router")
    blocking = [fault for fault in faults if fault.kind in _BLOCKING and not (has_begun and fault.kind in GRACEFUL)]
    times = sorted({start, end, *(min(max(at, start), end) for fault in blocking for at in (fault.start, fault.end))})
    seconds = 0.0
    for begin, until in pairwise(times):
        down = {target for fault in blocking if fault.start <= begin and until <= fault.end for target in fault.targets}
        serves = any(
            not {gateway, name, shape.link(gateway, name)} & down and reaches_worker(shape, down, name, group)
            for gateway in gateways
            for name in routers
        )
        seconds += 0.0 if serves else until - begin
    return seconds


def by_kind(records: Sequence[Record], broken: Mapping[str, str]) -> list[KindFigures]:
    """Returns the figures of each kind of fault. `broken`: what became of calls that were not answered, by id."""
    calls = [record for record in records if isinstance(record, Call)]
    usual = usual_gaps(calls)
    storm = [call for call in calls if call.phase != "calm"]
    faults = [record for record in records if isinstance(record, Fault)]
    longest = _longest_pauses(faults, storm, usual)
    return [
        _figures(kind, {fault: longest[fault] for fault in faults if fault.kind == kind}, storm, broken)
        for kind in sorted({fault.kind for fault in faults})
    ]


def _figures(
    kind: str, longest: Mapping[Fault, float], calls: Sequence[Call], broken: Mapping[str, str]
) -> KindFigures:
    met = {call.id for fault in longest for call in calls if call.start <= fault.end and call.end >= fault.start}
    ends = [broken[id_] for id_ in met if id_ in broken]
    excused, pauses = ends.count("excused"), longest.values()
    return KindFigures(kind, len(longest), len(met), median(pauses), max(pauses), len(ends) - excused, excused)


def _longest_pauses(
    faults: Sequence[Fault], calls: Iterable[Call], usual: Mapping[str, float]
) -> defaultdict[Fault, float]:
    """Returns the longest pause that each fault caused, in seconds."""
    longest: defaultdict[Fault, float] = defaultdict(float)
    in_order = sorted(faults, key=lambda fault: fault.start)
    for call in calls:
        for start, end in _gaps(call):
            pause = end - start - usual.get(call.request, 0.0)
            if pause > 0 and (fault := _cause(in_order, start, end)) is not None:
                longest[fault] = max(longest[fault], pause)
    return longest


def _cause(faults: Sequence[Fault], start: float, end: float) -> Fault | None:
    """Returns the fault that counts as the cause of a gap. `faults`: in the order in which they began."""
    for fault in faults:
        if start <= fault.start <= end:
            return fault
    return next((fault for fault in reversed(faults) if fault.start < start <= fault.end), None)


def usual_gaps(calls: Iterable[Call], gaps_of: Gaps = _gaps) -> dict[str, float]:
    """Returns the longest gap of each request's streams in the calm phase, in seconds. `gaps_of`: what counts as the
    gaps of a call."""
    longest: dict[str, float] = {}
    for call in calls:
        if call.phase == "calm":
            for start, end in gaps_of(call):
                longest[call.request] = max(longest.get(call.request, 0.0), end - start)
    return longest
