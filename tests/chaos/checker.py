"""Judges a history. Pure functions; tests/unit/chaos breaks each rule by hand.

- Calls of the same request in the calm phase have the same answer: the fault-free one.
- Every later answer is equal to it: every token once and in order, with the same text, tool calls, finish reasons,
  usage, log probabilities (to 1e-4) and vectors. What came of an answer that broke off, or that the client left, is its
  beginning.
- A call that is not answered is refused before its first output, with a Retry-After: with status 429, or with 503 if
  faults left nobody who could have served it.
- A stream that breaks off is lost, but for those of a router or gateway that was itself killed, cut off or silent, or
  told to end longer ago than its drain lasts. These are counted apart. A call that began after the fault is none of
  them, because the gateway and the clients can send it elsewhere. Nor is a call without output at such a router,
  because the gateway can send it to another one.
- No call is still open at its deadline, and none stands still for long while somebody could serve it.
- No part ends by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.chaos.answers import (
    Answer,
    IncompleteError,
    begun_over_grpc,
    begun_over_http,
    contradiction,
    difference,
    over_grpc,
    over_http,
)
from tests.chaos.catalog import HttpRequest, Request
from tests.chaos.draw import DELAY, GRACEFUL, KILL, KILL_ALL, MEMORY, STALL, STOP
from tests.chaos.fleet import ANYBODY, DRAIN_S, Shape, link_name
from tests.chaos.history import Call, Exit, Fault, Record, Served
from tests.chaos.pauses import standstills, without_service

# Faults that break no stream if they are shorter than the gateway's pings wait (deploy/envoy/envoy.yaml.j2).
_SILENT = {STOP, STALL}
_PING_S = 4.5  # 5 s, less half a second because the history's clock is not the gateway's
# A drain may seem to end earlier by this much, or a fault to begin later: the history's clock is not the part's.
_EARLY_S = 0.5
# Seconds from SIGTERM in which a gateway on a busy machine may still accept a connection that it then resets.
_CLOSES_S = 2.0
# The gateway writes its access log once a second (quire/cli/gateway.py).
_LOG_S = 2.0
# A fault excuses no call that ends this much later than the fault.
_LATE_S = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule. `rule`: lost, different, hung, stood still, refused wrongly, or ended by itself. `what`: the call
    or part."""

    rule: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}: {self.detail}"


@dataclass(slots=True)
class Verdict:
    findings: list[Finding] = field(default_factory=list)
    # Number of calls by what became of them: answered, left, refused, excused, or a rule that was broken.
    calls: Counter[str] = field(default_factory=Counter)
    # Number of excused calls by what excuses them: the kind of fault, and of the part or link.
    excuses: Counter[str] = field(default_factory=Counter)
    # The calls among them that are neither answered nor refused, by id.
    broken: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Context:
    requests: Mapping[str, Request]
    references: Mapping[str, Answer]
    routers: Mapping[str, str]
    faults: Sequence[Fault]
    shape: Shape

    def without_service(self, call: Call) -> float:
        """Returns the seconds of a call in which nobody could have served it if it had no output. Parts need some time
        to find each other again."""
        faults = [
            replace(fault, end=fault.end + _LATE_S)
            for fault in self.faults
            if fault.start <= call.end and call.start <= fault.end + _LATE_S
        ]
        return without_service(replace(call, events=()), None, call.start, call.end, faults, self.shape)


def check(
    records: Iterable[Record], requests: Iterable[Request], shape: Shape, *, max_rest: float = math.inf
) -> Verdict:
    """Judges the whole history of a run. `requests`: the catalog. `shape`: of the fleet. `max_rest`: the longest time
    in seconds that the fleet may take to go on with a stream while somebody could serve it."""
    records, by_name = list(records), {request.name: request for request in requests}
    calls = [record for record in records if isinstance(record, Call)]
    references: dict[str, Answer] = {}
    verdict = Verdict()
    for call in calls:
        is_whole, is_begun = call.outcome == "ended" and call.status == 200, call.outcome == "left"
        if call.phase == "calm" and (is_whole or is_begun) and call.request not in references:
            try:
                read = answer_of if is_whole else beginning_of
                references[call.request] = read(call, by_name[call.request])
            except (IncompleteError, ValueError, LookupError, TypeError):
                continue  # Judged below.
    context = _Context(
        by_name,
        references,
        {record.id: record.router for record in records if isinstance(record, Served)},
        [record for record in records if isinstance(record, Fault)],
        shape,
    )
    for call in calls:
        outcome, detail = _judged(call, context)
        verdict.calls[outcome] += 1
        if outcome == "excused":
            verdict.excuses[detail] += 1
        if outcome not in ("answered", "left", "refused"):
            verdict.broken[call.id] = outcome
        if outcome not in ("answered", "left", "refused", "excused"):
            what = f"{call.id} ({call.request}), {call.start:.1f} to {call.end:.1f} s"
            verdict.findings.append(Finding(outcome, what, detail))
    verdict.findings += [
        Finding("stood still", f"{pause.call} ({pause.request}) at {pause.start:.1f} s", f"for {pause.rest:.1f} s")
        for pause in standstills(records, max_rest, shape)
    ]
    verdict.findings += [
        Finding("ended by itself", record.part, f"at {record.at:.1f} s: {record.how}")
        for record in records
        if isinstance(record, Exit) and not record.was_meant
    ]
    return verdict


def answer_of(call: Call, request: Request) -> Answer:
    """Reads a call's answer. Raises IncompleteError, ValueError, LookupError or TypeError."""
    data = [event.data for event in call.events]
    return over_http(data, request.is_stream) if isinstance(request, HttpRequest) else over_grpc(data)


def beginning_of(call: Call, request: Request) -> Answer:
    """Reads what a call has received of its answer. Raises ValueError, LookupError or TypeError."""
    data = [event.data for event in call.events]
    return begun_over_http(data) if isinstance(request, HttpRequest) else begun_over_grpc(data)


def _judged(call: Call, context: _Context) -> tuple[str, str]:
    """Returns what became of the call, and why."""
    if call.outcome == "hung":
        return "hung", f"{len(call.events)} events, then nothing"
    if call.outcome == "ended" and call.status != 200:
        return _refused(call, context)
    if call.outcome in ("left", "cut"):
        return _judged_beginning(call, context, f"cut after {len(call.events)} events: {call.detail}")
    try:
        answer = answer_of(call, context.requests[call.request])
    except IncompleteError as error:
        return _judged_beginning(call, context, str(error))
    except (ValueError, LookupError, TypeError) as error:
        return "different", f"{type(error).__name__}: {error}"
    if call.request not in context.references:
        return "lost", "there is no fault-free answer to compare with"
    differs = difference(answer, context.references[call.request])
    return ("answered", "") if differs is None else ("different", differs)


def _judged_beginning(call: Call, context: _Context, why: str) -> tuple[str, str]:
    """Judges a call whose answer is not whole. `why`: how it ended."""
    reference = context.references.get(call.request)
    try:
        begun = beginning_of(call, context.requests[call.request])
        differs = None if reference is None else contradiction(begun, reference)
    except (ValueError, LookupError, TypeError) as error:
        differs = f"{type(error).__name__}: {error}"
    if differs is not None:
        return "different", differs
    if call.outcome == "left":
        return "left", ""
    excuse = _excuse(call, context)
    return ("lost", why) if excuse is None else ("excused", excuse)


def _refused(call: Call, context: _Context) -> tuple[str, str]:
    if call.retry_after is None:
        return "refused wrongly", f"status {call.status} without Retry-After: {call.detail}"
    if call.status == 429 or (call.status == 503 and context.without_service(call) > 0):
        return "refused", ""
    return "refused wrongly", f"status {call.status} in phase {call.phase}: {call.detail}"


def _is_refused(call: Call, fault: Fault, context: _Context) -> bool:
    """Returns whether a gateway that was told to end has not taken the call. The gateway of the last release accepts
    connections during its drain, and closes most of them at once. It ends at any moment without a call, even if it has
    just accepted another one and a router has it. Any gateway resets those that it has not accepted yet when it closes
    its port."""
    if call.events:
        return False
    if call.start >= fault.start and fault.was_last_release:
        return True
    if call.id in context.routers:
        return False
    if call.start < fault.start:
        return call.start >= fault.start - _EARLY_S and call.end <= fault.start + _CLOSES_S
    is_refused = call.detail.startswith("ClientConnectorError")
    return is_refused or call.start <= fault.start + _CLOSES_S


def _causes(call: Call, context: _Context) -> set[str]:
    """Returns the parts and links that can have cut the call's stream."""
    router = context.routers.get(call.id)
    if router is not None:
        return {call.gateway, router, link_name(ANYBODY, router), link_name(call.gateway, router)}
    # The access log says which router has served a call. A gateway that is killed loses the last lines.
    is_unknown = any(
        one.kind in (KILL, KILL_ALL) and call.gateway in one.targets and 0 <= one.start - call.end < _LOG_S
        for one in context.faults
    )
    targets = {target for fault in context.faults for target in fault.targets} if is_unknown else set()
    return {call.gateway, *(target for target in targets if target.rpartition(">")[2].startswith("router-"))}


def _excuse(call: Call, context: _Context) -> str | None:
    """Returns the fault that excuses the call, None if there is none: a fault of the router or gateway that the call
    went through, at that time. A part that is told to end lets streams go on for the length of its drain. A gateway
    that ends refuses connections. A delay breaks nothing, and a silence only what ends after the gateway's pings. It is
    not known when a memory limit kills a part."""
    causes = _causes(call, context)
    if not call.events and call.status == 0 and context.without_service(call) == 0:
        causes = {call.gateway}  # another router could have taken it

    def excuses(fault: Fault) -> bool:
        if (
            causes.isdisjoint(fault.targets)
            or not fault.start <= call.end <= fault.end + _LATE_S
            or (fault.end < call.start)
        ):
            return False
        has_begun = call.start <= fault.start + _EARLY_S
        if fault.kind in _SILENT:
            return call.end >= fault.start + _PING_S
        if fault.kind in GRACEFUL:
            # A gateway of the last release takes new calls while it drains.
            is_over = (has_begun or fault.was_last_release) and call.end >= fault.start + DRAIN_S - _EARLY_S
            return is_over or (call.gateway in fault.targets and _is_refused(call, fault, context))
        return fault.kind != DELAY and (has_begun or fault.kind == MEMORY)

    for fault in context.faults:
        if excuses(fault):
            target = min(causes.intersection(fault.targets))
            return f"{fault.kind} of a {'link' if '>' in target else target.partition('-')[0]}"
    return None
