"""The benchmark of throughput by number of parts, with a small fleet."""

from __future__ import annotations

from benchmarks.pauses.fleet import Shape, running_fleet
from benchmarks.scaling import rates


async def test_requests_go_through_every_router_and_each_service_spends_time() -> None:
    with running_fleet(Shape(routers=2, schedulers=1, workers=1)) as fleet:
        figures = await rates(fleet, 2.0)
    assert figures["requests_per_s"] > 0
    assert figures.keys() >= {"router_ms_per_request", "scheduler_ms_per_request", "client_ms_per_request"}
