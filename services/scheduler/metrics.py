"""Prometheus metrics of one scheduler. At each scrape, they are read from the worker groups. Metrics of the tokens and
latencies of requests come from the routers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.worker_groups import Fleet
from shared.metrics import buckets, catalog, without_empty_version

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family


class LoadCollector:
    """Gauges and counters under vLLM's names, so that queries, alerts and autoscalers for vLLM work. What differs
    is in docs/metrics.md."""

    def __init__(
        self,
        model: Callable[[], tuple[str, str]],
        load: Callable[[], scheduler_pb2.Load],
        throughput: Callable[[], tuple[float, float]],
    ) -> None:
        """`model`: returns the model's name and version. `throughput`: returns (prompt tokens per second, generated
        tokens per second), over the last 10 s."""
        self._model = model
        self._load = load
        self._throughput = throughput

    def collect(self) -> Iterator[Family]:
        return map(without_empty_version, self._families())

    def _families(self) -> Iterator[Family]:
        model, load = self._model(), self._load()
        prompt_rate, generation_rate = self._throughput()
        usage = load.num_used_blocks / max(1, load.num_blocks)
        gauges = (
            (catalog.NUM_REQUESTS_RUNNING, load.num_running),
            (catalog.NUM_REQUESTS_WAITING, load.num_waiting),
            (catalog.KV_CACHE_USAGE, usage),
            (catalog.GPU_CACHE_USAGE, usage),
            (catalog.CPU_CACHE_USAGE, load.num_used_host_blocks / max(1, load.num_host_blocks)),
            (catalog.PROMPT_THROUGHPUT, prompt_rate),
            (catalog.GENERATION_THROUGHPUT, generation_rate),
        )
        for metric, value in gauges:
            gauge = metric.gauge()
            gauge.add_metric(model, value)
            yield gauge
        by_reason = catalog.NUM_REQUESTS_WAITING_BY_REASON.gauge()
        by_reason.add_metric([*model, "capacity"], load.num_waiting - load.num_deferred)
        by_reason.add_metric([*model, "deferred"], load.num_deferred)
        yield by_reason
        awake = catalog.ENGINE_SLEEP_STATE.gauge()
        awake.add_metric([*model, "awake"], load.num_ready_groups > 0)
        yield awake
        device_hits = load.num_prefix_cache_hits - load.num_host_cache_hits
        counters = (
            (catalog.NUM_PREEMPTIONS, load.num_preemptions),
            (catalog.PREFIX_CACHE_QUERIES, load.num_prefix_cache_queries),
            (catalog.PREFIX_CACHE_HITS, device_hits),
            (catalog.GPU_PREFIX_CACHE_QUERIES, load.num_prefix_cache_queries),
            (catalog.GPU_PREFIX_CACHE_HITS, device_hits),
            (catalog.EXTERNAL_PREFIX_CACHE_QUERIES, load.num_host_cache_queries),
            (catalog.EXTERNAL_PREFIX_CACHE_HITS, load.num_host_cache_hits),
        )
        for counted, count in counters:
            counter = counted.counter()
            counter.add_metric(model, count)
            yield counter


class FleetCollector:
    """Collects what tells workers apart. The label `engine` is the number of the worker group. A group that is added
    takes the number of one that was removed, and continues its counters (worker_groups/engines.py)."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Family]:
        return map(without_empty_version, self._families())

    def _families(self) -> Iterator[Family]:
        fleet = self._fleet
        ready = catalog.WORKERS_READY.gauge()
        ready.add_metric([], fleet.num_ready)
        yield ready
        lost = catalog.WORKERS_LOST.counter()
        lost.add_metric([], fleet.num_lost)
        yield lost
        outbox = catalog.OUTBOX_MESSAGES.gauge()
        outbox.add_metric(["worker"], sum(group.num_queued for group in fleet.groups))
        yield outbox
        stall, most = catalog.STEP_LOOP_STALL.gauge(), catalog.MAX_NUM_SEQS.gauge()
        for group in fleet.groups:
            if group.engine is not None and group.core is not None:
                stall.add_metric([str(group.engine.index)], group.stalled_s)
                most.add_metric([str(group.engine.index)], group.core.config.max_num_seqs)
        yield from (stall, most)
        if fleet.model.is_known:
            yield from self._of_engines((fleet.model.info.name, fleet.model.info.version))

    def _of_engines(self, model: tuple[str, str]) -> Iterator[Family]:
        steps = catalog.ITERATION_TOKENS.histogram("engine")
        for engine in self._fleet.engines.all:
            counts = engine.counters.steps_by_tokens
            steps.add_metric(
                [*model, str(engine.index)],
                buckets=buckets(catalog.ITERATION_TOKENS.bounds, counts),
                sum_value=engine.counters.scheduled_tokens,
            )
        yield steps
        info = catalog.CACHE_CONFIG_INFO.gauge("engine")
        for group in self._fleet.groups:
            if group.engine is not None and group.core is not None:
                config = group.core.config
                sizes = (config.block_size, config.num_blocks, config.num_host_blocks, config.enable_prefix_caching)
                info.add_metric([*model, *map(str, sizes), str(group.engine.index)], 1)
        yield info
