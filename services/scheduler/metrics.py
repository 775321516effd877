"""Prometheus metrics of one scheduler. At each scrape, they are read from the worker groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from quire.scheduler.v1 import scheduler_pb2

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.registry import Collector


class LoadCollector:
    """Gauges and counters under vLLM's names, so that vLLM's dashboards and autoscalers work unchanged. Metrics of the
    tokens and latencies of requests come from the routers.
    """

    def __init__(
        self,
        model_name: Callable[[], str],
        load: Callable[[], scheduler_pb2.Load],
        throughput: Callable[[], tuple[float, float]],
        model_version: Callable[[], str] = lambda: "",
    ) -> None:
        """`model_version`: returns the label of that name; without a version, there is no such label. `throughput`:
        returns (prompt tokens per second, generated tokens per second), over the last 10 s."""
        self._model_name = model_name
        self._load = load
        self._throughput = throughput
        self._model_version = model_version

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        load = self._load()
        prompt_rate, generation_rate = self._throughput()
        usage = load.num_used_blocks / max(1, load.num_blocks)
        host_usage = load.num_used_host_blocks / max(1, load.num_host_blocks)
        gauges = {
            "vllm:num_requests_running": (load.num_running, "Sequences in the running batch."),
            "vllm:num_requests_waiting": (load.num_waiting, "Sequences waiting for their turn."),
            "vllm:kv_cache_usage_perc": (usage, "Fraction of KV blocks in use, 0 to 1."),
            "vllm:gpu_cache_usage_perc": (usage, "Fraction of KV blocks in use, 0 to 1 (older name)."),
            "vllm:cpu_cache_usage_perc": (host_usage, "Used fraction of the swap space, 0 to 1."),
            "vllm:avg_prompt_throughput_toks_per_s": (prompt_rate, "Prompt tokens per second, over the last 10 s."),
            "vllm:avg_generation_throughput_toks_per_s": (
                generation_rate,
                "Generated tokens per second, over the last 10 s.",
            ),
        }
        version = self._model_version()
        labels = {"model_name": self._model_name()} | ({"model_version": version} if version else {})
        for name, (value, help_text) in gauges.items():
            gauge = GaugeMetricFamily(name, help_text, labels=tuple(labels))
            gauge.add_metric(tuple(labels.values()), value)
            yield gauge
        counters = {
            "vllm:num_preemptions": (load.num_preemptions, "Sequences preempted."),
            "vllm:prefix_cache_queries": (load.num_prefix_cache_queries, "Tokens looked up in the prefix cache."),
            "vllm:prefix_cache_hits": (load.num_prefix_cache_hits, "Tokens found in the prefix cache."),
        }
        for name, (count, help_text) in counters.items():
            counter = CounterMetricFamily(name, help_text, labels=tuple(labels))
            counter.add_metric(tuple(labels.values()), count)
            yield counter


def registry(*collectors: Collector) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry

    result = CollectorRegistry()
    for collector in collectors:
        result.register(collector)
    return result
