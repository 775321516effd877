"""How long streams stood still, and which of it counts, in histories made by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.chaos.catalog import HttpRequest
from tests.chaos.checker import check
from tests.chaos.fleet import Shape
from tests.chaos.history import Event, Fault, Record, Served
from tests.chaos.pauses import Pause, by_kind, longest_pauses
from tests.unit.chaos.test_checker import CHAT, REFERENCE, SHAPE, WHOLE, call


@pytest.mark.parametrize(("max_rest", "found"), [(3.5, ["stood still"]), (4.5, [])])
def test_a_stream_that_stands_still_although_somebody_could_serve_it_is_found(
    max_rest: float, found: list[str]
) -> None:
    """A pause of six seconds. For two of them, all workers are gone."""
    events = tuple(Event(*event) for event in zip([10.0, 16.1, 16.2, 16.3, 16.4, 16.5], WHOLE, strict=True))
    stream = dataclasses.replace(call("a", WHOLE), end=16.5, events=events)
    gone = Fault("kill of a tier", ("worker-0", "worker-1"), 11.0, 13.0)
    verdict = check([REFERENCE, stream, gone, Served("a", "router-0")], [CHAT], SHAPE, max_rest=max_rest)
    assert [finding.rule for finding in verdict.findings] == found


@pytest.mark.parametrize(
    ("max_rest", "num_faults", "found"),
    [(4.5, 1, ["stood still"]), (5.5, 1, []), (4.5, 2, []), (2.0, 2, ["stood still"]), (2.0, 7, ["stood still"])],
)
def test_an_answer_that_comes_whole_may_take_longer_by_two_pauses_at_most(
    max_rest: float, num_faults: int, found: list[str]
) -> None:
    """It takes six seconds instead of one."""
    whole = {"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 4}}
    events = (Event(11.0, json.dumps(whole)),)
    calm = dataclasses.replace(call("a", [], "calm", "embeddings (quire-chat)"), start=10.0, events=events)
    late = dataclasses.replace(calm, id="b", phase="storm", start=5.0)
    faults = [Fault("slow link", (f"router-0>scheduler-{number}",), 6.0, 7.0) for number in range(num_faults)]
    embeddings = HttpRequest("embeddings (quire-chat)", "/v1/embeddings", {})
    verdict = check([REFERENCE, calm, late, *faults], [CHAT, embeddings], SHAPE, max_rest=max_rest)
    assert [finding.rule for finding in verdict.findings] == found


def test_pauses_are_those_beyond_the_usual_gaps() -> None:
    paused = call("a", WHOLE)
    times = [10.0, 10.1, 13.2, 13.3, 13.4, 13.5]
    paused = dataclasses.replace(
        paused, end=13.5, events=tuple(Event(at, data) for at, data in zip(times, WHOLE, strict=True))
    )
    records: list[Record] = [
        REFERENCE,
        paused,
        Fault("kill", ("worker-0",), 10.5, 11.5),
        Fault("kill", ("worker-1",), 20.0, 21.0),
    ]
    (figures,) = by_kind(records, {"a": "lost"})
    assert (figures.count, figures.calls, figures.failed) == (2, 1, 1)
    assert figures.worst_pause == pytest.approx(3.0)
    assert figures.median_pause == pytest.approx(1.5)


def test_a_pause_counts_for_the_first_fault_in_its_gap_or_else_for_the_last_before_it() -> None:
    streams = []
    for id_, times in {"a": [10.0, 10.1, 14.0, 14.1, 14.2, 14.3], "b": [17.0, 19.0, 19.1, 19.2, 19.3, 19.4]}.items():
        events = tuple(Event(at, data) for at, data in zip(times, WHOLE, strict=True))
        streams.append(dataclasses.replace(call(id_, WHOLE), start=times[0], end=times[-1], events=events))
    faults = [
        Fault("link down", ("router-0>scheduler-0",), 8.0, 20.0),
        Fault("kill", ("worker-0",), 10.5, 11.5),
        Fault("stop", ("worker-1",), 12.0, 13.0),
        Fault("link delay", ("router-0>scheduler-1",), 16.0, 16.5),
    ]
    worst = {figures.kind: figures.worst_pause for figures in by_kind([REFERENCE, *streams, *faults], {})}
    expected = {"link down": 1.9, "kill": 3.8, "stop": 0.0, "link delay": 0.0}
    assert worst == pytest.approx(expected)
    first, second = longest_pauses([REFERENCE, *streams, *faults], 3, SHAPE)[:2]
    assert (first.start, first.end, first.seconds) == pytest.approx((10.1, 14.0, 3.8))
    assert first.faults == tuple(faults[:3])
    assert (second.start, second.seconds) == pytest.approx((17.0, 1.9))
    assert second.faults == (faults[0],)
    # The other stream pauses at the same time, for less long.
    beside = dataclasses.replace(streams[0], id="c", start=10.2)
    assert longest_pauses([REFERENCE, *streams, beside, *faults], 2, SHAPE) == [first, second]


@pytest.mark.parametrize(
    ("faults", "without_service"),
    [
        # One of two workers: the other one could have served.
        ([("kill", ("worker-0",), 10.5, 13.0)], 0.0),
        ([("kill of a tier", ("worker-0", "worker-1"), 10.5, 13.0)], 2.5),
        ([("kill", ("worker-0",), 10.5, 13.0), ("stop", ("worker-1",), 11.0, 12.0)], 1.0),
        # Every link to the workers but one, and then that scheduler.
        ([("link down", ("scheduler-0>worker-0", "scheduler-0>worker-1"), 8.0, 20.0),
          ("kill", ("scheduler-1",), 10.0, 12.0)], 1.9),
        # The stream's own router, and another one.
        ([("stop", ("router-0",), 10.5, 11.5)], 1.0),
        ([("link stall", ("*>router-0",), 10.5, 11.5)], 0.0),
        ([("link stall", ("gateway-0>router-0",), 10.5, 11.5)], 1.0),
        ([("stop", ("router-1",), 10.5, 13.5)], 0.0),
        # A router that is told to end goes on with the streams that it has.
        ([("terminate", ("router-0",), 10.5, 13.5)], 0.0),
        ([("terminate", ("gateway-0",), 10.5, 13.5)], 0.0),
        ([("kill", ("gateway-0",), 10.5, 13.5)], 3.0),
        # What takes nobody away.
        ([("link delay", ("router-0>scheduler-0", "router-0>scheduler-1"), 10.5, 13.5)], 0.0),
        ([("full disk", ("disk",), 10.5, 13.5)], 0.0),
    ],
)  # fmt: skip
def test_a_pause_tells_how_long_nobody_could_have_served(
    faults: list[tuple[str, tuple[str, ...], float, float]], without_service: float
) -> None:
    at = [10.0, 10.1, 14.1, 14.2, 14.3, 14.4]
    events = tuple(Event(*event) for event in zip(at, WHOLE, strict=True))
    stream = dataclasses.replace(call("a", WHOLE), end=14.4, events=events)
    records: list[Record] = [stream, Served("a", "router-0"), *(Fault(*fault) for fault in faults)]
    (pause,) = longest_pauses(records, 1, SHAPE)
    assert (pause.seconds, pause.without_service) == pytest.approx((4.0, without_service))
    assert pause.rest == pytest.approx(4.0 - without_service)


@pytest.mark.parametrize(
    ("gateways", "kind", "target", "was_last_release", "without_service"),
    [
        (1, "rolling restart", "gateway-0", False, 3.0),
        (2, "rolling upgrade", "gateway-0", False, 0.0),
        (1, "rolling restart", "router-0", False, 0.0),
        (1, "rolling restart", "router-1", False, 0.0),
        # Such gateways hold the call.
        (2, "rolling upgrade", "gateway-0", True, 3.0),
        (2, "stop", "gateway-0", False, 3.0),
        (2, "stop", "gateway-1", False, 0.0),
    ],
)
def test_a_call_that_has_not_begun_can_go_to_any_gateway_and_router(
    gateways: int, kind: str, target: str, was_last_release: bool, without_service: float
) -> None:
    pause = pause_of_a_call_that_has_not_begun(gateways, Fault(kind, (target,), 9.0, 13.0, was_last_release))
    assert (pause.seconds, pause.without_service) == pytest.approx((4.0, without_service))


@pytest.mark.parametrize(("request_name", "without_service"), [("gRPC Embed 0", 3.0), ("embeddings", 0.0)])
def test_the_client_of_a_grpc_call_waits_for_its_gateway(request_name: str, without_service: float) -> None:
    pause = pause_of_a_call_that_has_not_begun(2, Fault("kill", ("gateway-0",), 9.0, 13.0), request_name)
    assert (pause.seconds, pause.without_service) == pytest.approx((4.0, without_service))


def pause_of_a_call_that_has_not_begun(gateways: int, fault: Fault, request: str = "chat") -> Pause:
    events = (Event(14.0, WHOLE[0]), Event(14.1, WHOLE[1]))
    name = f"{request} (quire-chat)"
    waiting = dataclasses.replace(call("a", WHOLE, request=name), start=10.0, end=14.1, events=events)
    (pause,) = longest_pauses([waiting, Served("a", "router-0"), fault], 1, Shape(gateways=gateways, workers=2))
    return pause
