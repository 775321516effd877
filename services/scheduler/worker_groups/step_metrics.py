"""Prometheus metrics of one scheduler's steps, read from its worker groups at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from services.scheduler.core import STEP_TOKENS
from services.scheduler.worker_groups.fleet import Fleet

if TYPE_CHECKING:
    from prometheus_client import Metric


class StepCollector:
    """Collects the histogram of tokens per step, with vLLM's name and buckets. The label `engine` is the number of
    the worker group. A group that is added takes the number of one that was removed, and continues its counters
    (engines.py).
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Tokens that each step computes.", labels=["model_name", "engine"]
        )
        model = self._fleet.model
        for engine in self._fleet.engines.all if model.is_known else ():
            counters = engine.counters
            bounds = (*(str(float(bound)) for bound in STEP_TOKENS), "+Inf")
            counts = map(float, accumulate(counters.steps_by_tokens))
            family.add_metric(
                [model.info.name, str(engine.index)],
                buckets=list(zip(bounds, counts, strict=True)),
                sum_value=counters.scheduled_tokens,
            )
        yield family
