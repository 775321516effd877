"""Prometheus metrics: what each is (`catalog`), and how parts count and serve them.

Hot loops keep plain numbers; a scrape turns them into metrics. So a part that nobody scrapes does without
prometheus_client.
"""

from shared.metrics import catalog
from shared.metrics.exposition import registry_of, start_metrics_server
from shared.metrics.histogram import Histogram, buckets
from shared.metrics.metric import Metric, Part, without_empty_version

__all__ = [
    "Histogram",
    "Metric",
    "Part",
    "buckets",
    "catalog",
    "registry_of",
    "start_metrics_server",
    "without_empty_version",
]
