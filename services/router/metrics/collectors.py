"""Turns the router's numbers, and the schedulers' reports, into Prometheus metrics at a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from services.router.metrics.requests import RequestMetrics
from shared.metrics import Metric, buckets, catalog, without_empty_version

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as Family

    from services.router.dispatch import Placement, SchedulerConnection

    Connections = Mapping[tuple[str, str], Sequence[SchedulerConnection]]

# Each with the field of a scheduler's report that it is.
_COUNTERS = (
    (catalog.NUM_PREEMPTIONS, "num_preemptions"),
    (catalog.PREFIX_CACHE_QUERIES, "num_prefix_cache_queries"),
    (catalog.PREFIX_CACHE_HITS, "num_device_cache_hits"),
    (catalog.GPU_PREFIX_CACHE_QUERIES, "num_prefix_cache_queries"),
    (catalog.GPU_PREFIX_CACHE_HITS, "num_device_cache_hits"),
    (catalog.EXTERNAL_PREFIX_CACHE_QUERIES, "num_host_cache_queries"),
    (catalog.EXTERNAL_PREFIX_CACHE_HITS, "num_host_cache_hits"),
)


class LoadCollector:
    """Collects the schedulers' last reported loads, for Prometheus servers that scrape only the gateway.

    The schedulers' own metrics include the same values. So the router's metrics port does not serve this collector:
    otherwise a Prometheus server that scrapes schedulers and routers would count the values twice.
    """

    def __init__(self, placement: Placement, router_id: str) -> None:
        self._placement = placement
        self._router_id = router_id

    def collect(self) -> Iterator[Family]:
        by_model: dict[tuple[str, str], list[SchedulerConnection]] = {}
        for connection in self._placement.connections:
            if connection.info is not None:
                by_model.setdefault((connection.info.name, connection.info.version), []).append(connection)
        for family in (*self._gauges(by_model), *self._counters(by_model), self._steps(by_model)):
            yield without_empty_version(family)

    @staticmethod
    def _gauges(by_model: Connections) -> Iterator[Family]:
        values: dict[Metric, dict[tuple[str, ...], float]] = {}
        for model, connections in by_model.items():
            loads = [connection.load.last for connection in connections]
            throughputs = [connection.load.throughput() for connection in connections]
            usage = sum(load.num_used_blocks for load in loads) / max(1, sum(load.num_blocks for load in loads))
            num_host_blocks = sum(load.num_host_blocks for load in loads)
            waiting = sum(load.num_waiting for load in loads)
            deferred = sum(load.num_deferred for load in loads)
            is_awake = any(load.num_ready_groups for load in loads)
            for metric, value in (
                (catalog.NUM_REQUESTS_RUNNING, sum(load.num_running for load in loads)),
                (catalog.NUM_REQUESTS_WAITING, waiting),
                (catalog.KV_CACHE_USAGE, usage),
                (catalog.GPU_CACHE_USAGE, usage),
                (catalog.CPU_CACHE_USAGE, sum(load.num_used_host_blocks for load in loads) / max(1, num_host_blocks)),
                (catalog.PROMPT_THROUGHPUT, sum(prompt for prompt, _ in throughputs)),
                (catalog.GENERATION_THROUGHPUT, sum(generation for _, generation in throughputs)),
            ):
                values.setdefault(metric, {})[model] = value
            by_reason = values.setdefault(catalog.NUM_REQUESTS_WAITING_BY_REASON, {})
            by_reason[(*model, "capacity")] = waiting - deferred
            by_reason[(*model, "deferred")] = deferred
            values.setdefault(catalog.ENGINE_SLEEP_STATE, {})[(*model, "awake")] = is_awake
            known = [load for load in loads if load.enable_prefix_caching is not None]
            if known:
                # Schedulers of one model have the same options, except during a rolling update.
                num_blocks = (sum(load.num_blocks for load in known), sum(load.num_host_blocks for load in known))
                config = (known[0].block_size, *num_blocks, known[0].enable_prefix_caching)
                values.setdefault(catalog.CACHE_CONFIG_INFO, {})[(*model, *map(str, config))] = 1
        for metric, samples in values.items():
            gauge = metric.gauge()
            for labels, value in samples.items():
                gauge.add_metric(labels, value)
            yield gauge

    def _counters(self, by_model: Connections) -> Iterator[Family]:
        """One series per scheduler, because a sum would decrease when a scheduler disappears. One series per router,
        because routers get a scheduler's report at different times: a shared series could decrease between two
        scrapes."""
        for metric, field in _COUNTERS:
            counter = metric.counter("scheduler", "router")
            for model, connections in by_model.items():
                for connection in connections:
                    if connection.load.has_report:
                        labels = [*model, connection.address, self._router_id]
                        counter.add_metric(labels, getattr(connection.load.last, field))
            yield counter

    def _steps(self, by_model: Connections) -> HistogramMetricFamily:
        metric = catalog.ITERATION_TOKENS
        family = metric.histogram("scheduler", "router")
        for model, connections in by_model.items():
            for connection in connections:
                load = connection.load.last
                # A scheduler of another version can have other buckets, or none.
                if len(load.num_steps_by_tokens) == len(metric.bounds) + 1:
                    family.add_metric(
                        [*model, connection.address, self._router_id],
                        buckets=buckets(metric.bounds, load.num_steps_by_tokens),
                        sum_value=load.num_scheduled_tokens,
                    )
        return family


class RouterCollector:
    """Collects the metrics of this router's own requests. Every sample has the label `router`."""

    def __init__(self, requests: RequestMetrics, placement: Placement, router_id: str) -> None:
        self._requests = requests
        self._placement = placement
        self._router_id = router_id

    def collect(self) -> Iterator[Family]:
        for family in (*self._histograms(), *self._counts(), *self._state()):
            yield without_empty_version(family, router=self._router_id)

    def _histograms(self) -> Iterator[Family]:
        families: dict[Metric, HistogramMetricFamily] = {}
        for model, metrics in list(self._requests.models.items()):
            for metric, histogram in metrics.histograms.items():
                if metric not in families:
                    families[metric] = metric.histogram()
                histogram.add_to(families[metric], model)
                if metric is catalog.INTER_TOKEN_LATENCY:
                    older = catalog.TIME_PER_OUTPUT_TOKEN
                    if older not in families:
                        families[older] = older.histogram()
                    histogram.add_to(families[older], model)
        yield from families.values()
        lag = catalog.EVENT_LOOP_LAG.histogram()
        self._requests.event_loop_lag.add_to(lag, [])
        yield lag

    def _counts(self) -> Iterator[Family]:
        prompt, generation = catalog.PROMPT_TOKENS.counter(), catalog.GENERATION_TOKENS.counter()
        cached, success = catalog.PROMPT_TOKENS_CACHED.counter(), catalog.REQUEST_SUCCESS.counter()
        by_source, cached_by = (
            catalog.PROMPT_TOKENS_BY_SOURCE.counter(),
            catalog.PROMPT_TOKENS_CACHED_BY_SOURCE.counter(),
        )
        rejections = catalog.ADMISSION_REJECTIONS.counter()
        recovered, lost = catalog.STREAMS_RECOVERED.counter(), catalog.STREAMS_LOST.counter()
        for model, metrics in list(self._requests.models.items()):
            prompt.add_metric(model, metrics.num_prompt_tokens)
            generation.add_metric(model, metrics.num_generation_tokens)
            recovered.add_metric(model, metrics.num_recovered)
            lost.add_metric(model, metrics.num_lost)
            for source, count in metrics.by_source.items():
                by_source.add_metric([*model, source], count)
                if source != "local_compute":
                    cached_by.add_metric([*model, source], count)
            cached.add_metric(model, metrics.by_source["local_cache_hit"] + metrics.by_source["external_kv_transfer"])
            for reason, count in metrics.finished.items():
                success.add_metric([*model, reason], count)
            for reason, count in metrics.rejections.items():
                rejections.add_metric([*model, reason], count)
        yield from (prompt, generation, cached, by_source, cached_by, success, rejections, recovered, lost)
        yield _labelled(catalog.REQUEST_ERRORS, self._requests.errors)
        yield _labelled(catalog.IGNORED_FIELDS, self._requests.ignored_fields)

    def _state(self) -> Iterator[Family]:
        placement = self._placement
        ready = catalog.SCHEDULERS_READY.gauge()
        numbers: Counter[tuple[str, str]] = Counter()
        for connection in placement.connections:
            if connection.info is not None:
                # A scheduler whose workers are gone counts as 0, so that its model has a series that alerts can see.
                takes_work = connection.has_workers and not connection.is_draining
                numbers[(connection.info.name, connection.info.version)] += takes_work
        for model, number in numbers.items():
            ready.add_metric(model, number)
        yield ready
        gauges = (
            (catalog.SCHEDULERS_STALE, placement.roster.num_stale),
            (catalog.MODEL_NAME_CONFLICTS, placement.models.num_conflicts),
            (catalog.SEQUENCES_PARKED, placement.num_parked),
        )
        for metric, value in gauges:
            gauge = metric.gauge()
            gauge.add_metric([], value)
            yield gauge
        outbox = catalog.OUTBOX_MESSAGES.gauge()
        outbox.add_metric(["scheduler"], sum(connection.num_queued for connection in placement.connections))
        yield outbox
        counters = (
            (catalog.RESUBMISSIONS, placement.num_resubmissions),
            (catalog.SLOW_CLIENT_PAUSES, placement.num_pauses),
        )
        for metric, value in counters:
            counter = metric.counter()
            counter.add_metric([], value)
            yield counter


def _labelled(metric: Metric, counts: Counter[str]) -> CounterMetricFamily:
    family = metric.counter()
    for value, count in list(counts.items()):
        family.add_metric([value], count)
    return family
