"""Prometheus metrics of discovery. Each scrape reads the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shared.discovery.known_parts import KnownParts
from shared.discovery.registry import Registry
from shared.metrics import catalog

if TYPE_CHECKING:
    from prometheus_client import Metric


class DiscoveryCollector:
    """What a part knows of others, by their kind, and whether others can find it."""

    def __init__(self, sources: Sequence[KnownParts], registry: Registry) -> None:
        self._sources = sources
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        parts, silence = catalog.DISCOVERY_PARTS.gauge(), catalog.DISCOVERY_SILENCE.gauge()
        for source in self._sources:
            parts.add_metric([source.kind, "fresh"], source.num_known - source.num_stale)
            parts.add_metric([source.kind, "stale"], source.num_stale)
            silence.add_metric([source.kind], source.seconds_since_answer())
        registered, age = catalog.DISCOVERY_REGISTERED.gauge(), catalog.LEASE_AGE.gauge()
        for kind, lease in self._registry.leases.items():
            registered.add_metric([kind], lease.runs)
            if lease.age_s is not None:
                age.add_metric([kind], lease.age_s)
        yield from (parts, silence, registered, age)
