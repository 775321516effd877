"""Prometheus metrics of discovery. Each scrape reads the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shared.discovery.known_parts import KnownParts
from shared.discovery.registry import Registry

if TYPE_CHECKING:
    from prometheus_client import Metric


class DiscoveryCollector:
    """What a part knows of others, by their kind, and whether others can find it."""

    def __init__(self, sources: Sequence[KnownParts], registry: Registry) -> None:
        self._sources = sources
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        parts = GaugeMetricFamily(
            "quire:discovery_parts",
            "Parts that discovery knows. stale: the source does not answer, or not for long enough yet, so they may be "
            "gone; fresh: all others.",
            labels=["kind", "state"],
        )
        silence = GaugeMetricFamily(
            "quire:discovery_silence_seconds",
            "Time since the last answer of the source (DNS, Redis) that has been silent the longest.",
            labels=["kind"],
        )
        for source in self._sources:
            parts.add_metric([source.kind, "fresh"], source.num_known - source.num_stale)
            parts.add_metric([source.kind, "stale"], source.num_stale)
            silence.add_metric([source.kind], source.seconds_since_answer())
        registered = GaugeMetricFamily(
            "quire:discovery_registered", "1 while this part's lease in Redis runs, else 0.", labels=["kind"]
        )
        for kind, is_registered in self._registry.is_registered.items():
            registered.add_metric([kind], is_registered)
        yield from (parts, silence, registered)
