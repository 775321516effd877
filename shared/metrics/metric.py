"""Metric: a name, and what stands under it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as Family


class Part(Enum):
    """A place where a metric is served: the port for metrics of a kind of part, or SERVER."""

    ROUTER = "router"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    GATEWAY = "gateway"
    # GET /metrics of the gateway's port for clients, which one of the routers answers. There, routers also give what
    # schedulers report.
    SERVER = "server"


# Compared by identity: each metric exists once, and hot loops look their histograms up by it.
@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric's name, without the suffix _total of counters, and what it says."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str  # with the unit
    parts: tuple[Part, ...]
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, but for the last, which has none

    def gauge(self, *further: str) -> GaugeMetricFamily:
        """Returns a gauge without samples. `further`: labels besides the metric's own."""
        family: GaugeMetricFamily = self._family("gauge", further)
        return family

    def counter(self, *further: str) -> CounterMetricFamily:
        """Returns a counter without samples. `further`: labels besides the metric's own."""
        family: CounterMetricFamily = self._family("counter", further)
        return family

    def histogram(self, *further: str) -> HistogramMetricFamily:
        """Returns a histogram without samples. `further`: labels besides the metric's own."""
        family: HistogramMetricFamily = self._family("histogram", further)
        return family

    def _family(self, kind: str, further: tuple[str, ...]) -> Any:
        from prometheus_client import core

        assert kind == self.kind, f"{self.name} is a {self.kind}"
        classes = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        return classes[kind](self.name, self.help, labels=[*self.labels, *further])


def without_empty_version(family: Family, **further: str) -> Family:
    """Removes the label `model_version` where it is empty, so that the series of models without versions have vLLM's
    labels. Adds the labels `further`. Changes and returns `family`."""
    family.samples = [
        sample._replace(
            labels={name: value for name, value in sample.labels.items() if value or name != "model_version"} | further
        )
        for sample in family.samples
    ]
    return family
