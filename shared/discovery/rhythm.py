"""How often parts ask for each other, and how long a registration lasts."""

from __future__ import annotations

import random

# A part that has not renewed its registration in Redis for this long is gone. Only Redis' clock counts.
LEASE_S = 10.0
# Seconds between two renewals, and between two questions for the known parts, on average.
INTERVAL_S = 1.0
# The pauses differ by this fraction, so that a thousand parts do not ask at the same moment.
JITTER = 0.25


def pause() -> float:
    """Returns the seconds until the next renewal or question."""
    return INTERVAL_S * random.uniform(1 - JITTER, 1 + JITTER)
