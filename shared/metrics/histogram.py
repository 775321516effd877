"""Counts values in buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from shared.metrics.metric import Metric

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """A histogram: counts per bucket, and the sum of all values. Only one thread may write to it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, metric: Metric) -> None:
        self._bounds = metric.bounds
        self._counts = [0] * (len(metric.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        family.add_metric(labels, buckets=buckets(self._bounds, self._counts), sum_value=self._sum)


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Returns Prometheus' cumulative buckets: each upper bound, with the number of values up to it. `counts`: number of
    values in each bucket, the last one without an upper bound."""
    names = (*(str(float(bound)) for bound in bounds), "+Inf")
    return [(name, float(total)) for name, total in zip(names, accumulate(counts), strict=True)]
