"""Prometheus metrics of a worker, from its start on. Each scrape reads the step thread's counters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.progress import StartClock
from services.worker.service import StepThread
from shared.discovery import DiscoveryCollector, Registry
from shared.metrics import Metric, catalog, registry_of, start_metrics_server

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector


class StepCollector:
    def __init__(self, steps: StepThread) -> None:
        self._steps = steps

    def collect(self) -> Iterable[Family]:
        counters = self._steps.counters
        samples: tuple[tuple[Metric, tuple[str, ...], float], ...] = (
            (catalog.WORKER_STEPS, (), counters.num_steps),
            (catalog.WORKER_STEP_SECONDS, (), counters.step_seconds),
            (catalog.WORKER_DEVICE_SECONDS, ("busy",), counters.device_busy_seconds),
            (catalog.WORKER_DEVICE_SECONDS, ("idle",), counters.device_idle_seconds),
            (catalog.WORKER_TOKENS, ("scheduled",), counters.num_scheduled_tokens),
            (catalog.WORKER_TOKENS, ("sampled",), counters.num_sampled_tokens),
            (catalog.WORKER_SEQUENCE_ERRORS, (), counters.num_sequence_errors),
        )
        families: dict[Metric, CounterMetricFamily] = {}
        for metric, labels, value in samples:
            families.setdefault(metric, metric.counter()).add_metric(labels, value)
        yield from families.values()
        for metric, number in (
            (catalog.WORKER_SEQUENCES, counters.num_sequences),
            (catalog.WORKER_READY, self._steps.is_ready),
        ):
            gauge = metric.gauge()
            gauge.add_metric([], number)
            yield gauge


class StartCollector:
    def __init__(self, clock: StartClock) -> None:
        self._clock = clock

    def collect(self) -> Iterable[Family]:
        seconds = catalog.WORKER_START_SECONDS.gauge()
        for phase, value in self._clock.seconds.items():
            seconds.add_metric([phase.name.lower()], value)
        yield seconds


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """What a worker serves at /metrics. `address`: host:port."""

    address: str
    _registry: CollectorRegistry

    @classmethod
    def serve(cls, steps: StepThread, clock: StartClock, registry: Registry, host: str, port: int) -> WorkerMetrics:
        """Serves /metrics over HTTP; the system picks a free port if `port` is 0. Raises OSError if it cannot."""
        metrics = registry_of(StepCollector(steps), StartCollector(clock), DiscoveryCollector([], registry))
        return cls(f"{host}:{start_metrics_server(host, port, metrics)}", metrics)

    def add(self, collector: Collector) -> None:
        self._registry.register(collector)
