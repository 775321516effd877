"""Metrics of a process and its host, the same for every part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shared.host_memory import available_memory
from shared.metrics.catalog import HOST_MEMORY_AVAILABLE

if TYPE_CHECKING:
    from prometheus_client import Metric


class HostCollector:
    """Collects how much memory is left to the part."""

    def collect(self) -> Iterator[Metric]:
        available = available_memory()
        if available is not None:
            gauge = HOST_MEMORY_AVAILABLE.gauge()
            gauge.add_metric([], available.num_bytes)
            yield gauge
