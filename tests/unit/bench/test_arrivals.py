"""When requests are sent: as fast as asked, and as evenly."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest

from quire.bench.arrivals import arrival_times


def gaps(count: int, rate: float, burstiness: float, seed: int = 0) -> list[float]:
    times = arrival_times(count, rate, burstiness, random.Random(seed))
    return [after - before for before, after in pairwise([0.0, *times])]


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_is_kept_whatever_the_seed(seed: int) -> None:
    times = arrival_times(300, 20.0, 1.0, random.Random(seed))

    assert times[-1] == pytest.approx(15.0)
    assert times == sorted(times)


def test_a_poisson_process_has_exponential_gaps() -> None:
    found = gaps(20_000, 10.0, 1.0)

    assert statistics.fmean(found) == pytest.approx(0.1)
    assert statistics.pstdev(found) == pytest.approx(0.1, rel=0.03)
    # Of an exponential distribution, 1 / e is above the mean, and half below ln 2 times it.
    assert sum(gap > 0.1 for gap in found) / len(found) == pytest.approx(math.exp(-1), rel=0.03)
    assert statistics.median(found) == pytest.approx(0.1 * math.log(2), rel=0.03)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_is_the_gaps_shape(burstiness: float) -> None:
    """A gamma distribution's deviation is its mean over the root of its shape."""
    found = gaps(40_000, 10.0, burstiness)

    assert statistics.pstdev(found) == pytest.approx(0.1 / math.sqrt(burstiness), rel=0.03)


def test_no_burstiness_at_all_is_even() -> None:
    assert gaps(4, 2.0, math.inf) == pytest.approx([0.5] * 4)


def test_an_infinite_rate_sends_everything_at_once() -> None:
    assert arrival_times(3, math.inf, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]


def test_a_seed_repeats_itself() -> None:
    assert gaps(50, 3.0, 0.5, seed=1) == gaps(50, 3.0, 0.5, seed=1) != gaps(50, 3.0, 0.5, seed=2)
