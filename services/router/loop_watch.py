"""Measures how long the event loop is held up: for so long no stream of this router writes anything."""

from __future__ import annotations

import asyncio

from services.router.metrics import RequestMetrics

# Between two looks. A hold-up counts from its first missed look, so that shorter ones may count as less.
INTERVAL_SECONDS = 0.05


async def watch_loop(metrics: RequestMetrics) -> None:
    """Until it is cancelled."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + INTERVAL_SECONDS
        await asyncio.sleep(INTERVAL_SECONDS)
        metrics.event_loop_delay.observe(max(0.0, clock() - due))
