"""How often parts ask for each other, and how long a registration lasts."""

from __future__ import annotations

import random

# A part that has not renewed its registration in Redis for this long is gone. Only Redis' clock counts.
LEASE_S = 10.0
# Seconds between two renewals of a registration, on average.
RENEWAL_S = 1.0
# Seconds between two questions to Redis for the known parts, on average. With the jitter, a new part is known within
# 0.75 s. The answer to a question has 16 bytes while nothing changes.
QUESTION_S = 0.6
# Seconds between two lookups of a host name, on average.
LOOKUP_S = 1.0
# The pauses differ by this fraction, so that a thousand parts do not ask at the same moment.
JITTER = 0.25


def until_renewal() -> float:
    """Returns the seconds until the next renewal."""
    return _around(RENEWAL_S)


def until_question() -> float:
    """Returns the seconds until the next question."""
    return _around(QUESTION_S)


def until_lookup() -> float:
    """Returns the seconds until the next lookup."""
    return _around(LOOKUP_S)


def _around(average_seconds: float) -> float:
    return average_seconds * random.uniform(1 - JITTER, 1 + JITTER)
