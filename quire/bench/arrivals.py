"""Arrival times of the benchmark's requests."""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Returns the seconds from the start to each request, at `rate` requests per second; all 0 if the rate is infinite.

    Gaps follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, a smaller shape makes bursts, a
    larger shape makes the gaps even. The gaps are scaled so that the last request is sent after count / rate seconds
    for every seed.
    """
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [(index + 1) / rate for index in range(count)]
    times = list(accumulate(rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)))
    scale = count / rate / times[-1] if times and times[-1] else 1.0
    return [moment * scale for moment in times]
