"""Prometheus metrics of a worker. Each scrape reads the step thread's counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from services.worker.service import StepCounters
from shared.discovery import DiscoveryCollector, Registry
from shared.telemetry import start_metrics_server

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class StepCollector:
    def __init__(self, counters: StepCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counters = self._counters
        yield CounterMetricFamily("quire_worker_steps", "Steps run.", counters.num_steps)
        yield CounterMetricFamily("quire_worker_step_seconds", "Time in steps.", counters.step_seconds)
        device = CounterMetricFamily(
            "quire_worker_device_seconds",
            "Device time by the GPU's own clock. busy: from a step's first kernel to its results, gaps included; idle: "
            "between steps.",
            labels=["state"],
        )
        device.add_metric(["busy"], counters.device_busy_seconds)
        device.add_metric(["idle"], counters.device_idle_seconds)
        yield device
        tokens = CounterMetricFamily("quire_worker_tokens", "Tokens computed and tokens sampled.", labels=["kind"])
        tokens.add_metric(["scheduled"], counters.num_scheduled_tokens)
        tokens.add_metric(["sampled"], counters.num_sampled_tokens)
        yield tokens
        yield CounterMetricFamily("quire_worker_sequence_errors", "Failed sequences.", counters.num_sequence_errors)
        yield GaugeMetricFamily("quire_worker_sequences", "Sequences that hold a slot.", counters.num_sequences)


def serve_metrics(counters: StepCounters, registry: Registry, host: str, port: int) -> int:
    """Serves /metrics over HTTP. Returns the port; the system picks a free one if `port` is 0."""
    from prometheus_client import CollectorRegistry

    metrics = CollectorRegistry()
    metrics.register(StepCollector(counters))
    metrics.register(DiscoveryCollector([], registry))
    return start_metrics_server(host, port, metrics)
