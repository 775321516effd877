"""The benchmark of pauses: gaps of streams, bounds, and one round of each fault with fake workers."""

from __future__ import annotations

import grpc
import pytest

from benchmarks.pauses.fleet import Shape, running_fleet
from benchmarks.pauses.rounds import CUTS, FAULTS, Fault, Found, How, Load, Pause, bound, figures_of, play, usual_step
from benchmarks.pauses.streams import Stream
from quire.inference.v1 import inference_pb2_grpc


def test_a_gap_counts_if_it_had_not_ended_at_the_fault() -> None:
    stream = Stream([0.0, 3.0, 3.1, 3.5, 3.6])
    assert stream.longest_gap(3.05) == pytest.approx(0.4)
    assert stream.longest_gap(2.0) == pytest.approx(3.0)
    assert stream.longest_gap(9.0) == 0.0
    assert usual_step([stream], 3.2) == pytest.approx(1.55)


def test_a_suspended_worker_may_be_noticed_after_two_seconds_or_five_steps() -> None:
    suspended = Fault("worker", How.SUSPENDED)
    assert bound(Fault("worker", How.KILLED), 0.02, 1000, 0.0001) == pytest.approx(0.25 + 0.12 + 0.02)
    assert bound(suspended, 0.02, 0, 0.0) == pytest.approx(2.35 + 0.02)
    assert bound(suspended, 1.0, 0, 0.0) == pytest.approx(5.35 + 1.0)


def test_figures_have_the_worst_pause_and_those_within_their_bounds() -> None:
    pauses = [Pause(0.1, 0.2), Pause(0.2, 0.2), Pause(0.6, 0.4)]
    expected = {
        "x_streams": 3, "x_median_ms": 200, "x_worst_ms": 600, "x_median_bound_ms": 200,
        "x_within_bound_percent": 200 / 3,
    }  # fmt: skip
    assert figures_of("x", Found(pauses)) == pytest.approx(expected)
    plans = {"x_plan_median_ms": 50, "x_plan_p99_ms": 99}
    assert figures_of("x", Found(pauses, [at / 1000 for at in range(101)])) == pytest.approx(expected | plans)


@pytest.mark.parametrize("faults", [FAULTS, pytest.param(CUTS, marks=pytest.mark.thorough)], ids=["parts", "links"])
async def test_streams_go_on_after_each_fault(faults: tuple[Fault, ...]) -> None:
    with running_fleet(Shape(has_links=faults is CUTS)) as fleet:
        async with grpc.aio.insecure_channel(fleet.routers[0].address) as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
            for fault in faults:
                found = await play(fleet, stub, fault, 0, Load(8, 4000), 0.0001)
                assert found.pauses
                assert all(pause.seconds > 0 for pause in found.pauses)
                # On a slow machine, another part may be given up, too.
                assert len(found.plans) >= len(found.pauses)
