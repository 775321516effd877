"""When requests are sent."""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Seconds from the start to each request, at `rate` per second; all 0 where that is infinite.

    Gaps follow a gamma distribution of shape `burstiness`: 1 makes a Poisson process, less comes in bursts, more comes
    evenly. They are scaled so that the last request is sent after count / rate seconds, whatever the seed.
    """
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [(index + 1) / rate for index in range(count)]
    times = list(accumulate(rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)))
    scale = count / rate / times[-1] if times and times[-1] else 1.0
    return [moment * scale for moment in times]
