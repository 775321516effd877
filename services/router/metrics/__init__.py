"""What the router measures, under vLLM's names where vLLM has the same (`shared.metrics.catalog`).

Gauges of batches and caches come from the schedulers' reports; latencies and counts come from the requests of this
router. Behind a gateway, any router can answer a scrape, and each router has its own counts. The label `router` keeps
their series apart, so that no counter decreases from one scrape to the next (ADR 19).
"""

from services.router.metrics.collectors import LoadCollector, RouterCollector
from services.router.metrics.requests import ChoiceEnd, RequestMetrics, RequestTimer

__all__ = ["ChoiceEnd", "LoadCollector", "RequestMetrics", "RequestTimer", "RouterCollector"]
