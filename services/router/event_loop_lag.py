"""Measures for how long one piece of work holds up everything else on the event loop."""

from __future__ import annotations

import asyncio

from services.router.metrics import Histogram

# Between two looks. A hold-up that ends before the next look is due is not seen.
INTERVAL_SECONDS = 0.02


async def observe_lag(histogram: Histogram) -> None:
    """Runs until cancelled. Observes how much later than it was due each look came, in seconds."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + INTERVAL_SECONDS
        await asyncio.sleep(INTERVAL_SECONDS)
        histogram.observe(max(0.0, clock() - due))
