"""Measures the event loop's lag: how long one task blocks all others."""

from __future__ import annotations

import asyncio

from shared.metrics import Histogram

# Time between two measurements. A measurement misses a delay that ends before the measurement is due.
INTERVAL_SECONDS = 0.02


async def observe_lag(histogram: Histogram) -> None:
    """Sleeps in a loop until cancelled, and observes how many seconds too late each sleep ends."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + INTERVAL_SECONDS
        await asyncio.sleep(INTERVAL_SECONDS)
        histogram.observe(max(0.0, clock() - due))
