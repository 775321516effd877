"""A piece of work that holds up the event loop shows in the metric."""

from __future__ import annotations

import asyncio
import time

from services.router.dispatch.placement import Placement
from services.router.event_loop_lag import INTERVAL_SECONDS, observe_lag
from services.router.metrics import RequestMetrics, RouterCollector
from services.router.text.threads import TextThreads
from shared.discovery import StaticSource
from shared.metrics import registry_of
from tests.fakes.waiting import until


async def test_a_hold_up_of_the_event_loop_is_observed() -> None:
    metrics, threads = RequestMetrics(), TextThreads(1)
    placement = Placement(StaticSource(()), router_id="r", threads=threads, scheduler_wait=1, scheduler_silence=1)
    registry = registry_of(RouterCollector(metrics, placement, "r"))

    def slow() -> float:
        labels = {"router": "r"}
        total = registry.get_sample_value("quire:event_loop_lag_seconds_count", labels) or 0.0
        up_to = registry.get_sample_value("quire:event_loop_lag_seconds_bucket", {**labels, "le": "0.2"}) or 0.0
        return total - up_to

    watching = asyncio.create_task(observe_lag(metrics.event_loop_lag))
    await asyncio.sleep(0)
    before = slow()
    time.sleep(0.3 + INTERVAL_SECONDS)  # noqa: ASYNC251 - the hold-up
    await until(lambda: slow() > before)
    watching.cancel()
    threads.close()
