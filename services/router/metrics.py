"""Prometheus metrics under vLLM's names, so that dashboards, autoscalers and endpoint pickers for vLLM work unchanged.

Gauges come from the schedulers' reports; latencies and counts come from the requests of this router. The hot path keeps
plain numbers, and a scrape converts them. So a router that nobody scrapes does not need prometheus_client.

Behind a gateway, any router can answer a scrape, and each router has its own counts. The label `router` keeps their
series apart, so that no counter decreases from one scrape to the next (ADR 19).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector

    from services.router.dispatch import Placement, SchedulerConnection

# Bucket bounds in seconds. Metrics that vLLM has, too, have vLLM's bounds.
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_DELIVERY = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10)
# Bucket bounds of tokens per step, the same as in quire.scheduler.v1.Load.
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """A histogram: counts per bucket, and the sum of all values. Only one thread may write to it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        family.add_metric(labels, buckets=_buckets(self._bounds, self._counts), sum_value=self._sum)


# Labels that tell which model a sample is for. `model_version` is left out for models without versions, so that their
# series have vLLM's labels.
_MODEL_LABELS = ("model_name", "model_version")


def _without_empty_version(metric: Metric, **further: str) -> Metric:
    """Removes the label of the version where it is empty, and adds the labels `further`."""
    metric.samples = [
        sample._replace(
            labels={name: value for name, value in sample.labels.items() if value or name != "model_version"} | further
        )
        for sample in metric.samples
    ]
    return metric


class ModelMetrics:
    """Metrics of the requests that this router handled for one model."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(_FIRST_TOKEN)
        self.inter_token_latency = Histogram(_PER_TOKEN)
        self.mean_time_per_output_token = Histogram(_PER_TOKEN)
        self.e2e_request_latency = Histogram(_REQUEST)
        self.delivery = Histogram(_DELIVERY)
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.finished: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)


class RequestMetrics:
    """Metrics of all requests, by model, and counts of errors and ignored fields."""

    def __init__(self) -> None:
        # By name and version.
        self.models: dict[tuple[str, str], ModelMetrics] = {}
        self.event_loop_lag = Histogram(_LAG)
        # Number of errors, by gRPC status in lower case.
        self.errors: Counter[str] = Counter()
        # Number of unknown request fields that were ignored, by method.
        self.ignored_fields: Counter[str] = Counter()

    def start(self, model: str, num_prompt_tokens: int, version: str = "") -> RequestTimer:
        metrics = self.models.setdefault((model, version), ModelMetrics())
        metrics.num_prompt_tokens += num_prompt_tokens
        return RequestTimer(metrics)


class RequestTimer:
    """Measures one request, from its submission to its end."""

    __slots__ = ("_first", "_has_failed", "_last", "_metrics", "_num_tokens", "_start")

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._start = time.monotonic()
        # Time at which each choice last got tokens.
        self._last: dict[int, float] = {}
        self._first = 0.0
        self._num_tokens = 0
        self._has_failed = False

    def tokens(self, choice: int, count: int, now: float) -> None:
        metrics = self._metrics
        last = self._last.get(choice)
        if last is not None:
            metrics.inter_token_latency.observe((now - last) / count, count)
        elif not self._num_tokens:
            self._first = now
            metrics.time_to_first_token.observe(now - self._start)
        self._last[choice] = now
        self._num_tokens += count
        metrics.num_generation_tokens += count

    def delivered(self, seconds: float) -> None:
        """Records a delivery in the histogram `delivery`. `seconds`: time from the arrival of new tokens in this router
        until the client's transport accepted them."""
        self._metrics.delivery.observe(seconds)

    @property
    def start(self) -> float:
        """Time of the request's submission, in seconds on the monotonic clock."""
        return self._start

    @property
    def first_token_at(self) -> float | None:
        """Time of the first token, in seconds on the monotonic clock; None before the first token."""
        return self._first if self._num_tokens else None

    @property
    def last_token_at(self) -> float | None:
        return max(self._last.values(), default=None)

    @property
    def seconds_to_first_token(self) -> float:
        """Seconds from the submission to the first token; 0 before the first token."""
        return self._first - self._start if self._num_tokens else 0.0

    def finished(self, reason: str) -> None:
        """Counts one complete choice."""
        self._metrics.finished[reason] += 1

    def failed(self) -> None:
        self._has_failed = True

    def closed(self, completed: bool) -> None:
        """Ends the measurement. `completed`: whether all output was generated. A request that neither completed nor
        failed was aborted by its client."""
        if not completed:
            self._metrics.finished["error" if self._has_failed else "abort"] += 1
            return
        now = time.monotonic()
        self._metrics.e2e_request_latency.observe(now - self._start)
        num_choices = len(self._last)
        if self._num_tokens > num_choices:
            per_token = (now - self._first) * num_choices / (self._num_tokens - num_choices)
            self._metrics.mean_time_per_output_token.observe(per_token)


class LoadCollector:
    """Collects the schedulers' last reported loads, for Prometheus servers that scrape only the gateway.

    The schedulers' own metrics include the same values. So the router's metrics port does not serve this collector:
    otherwise a Prometheus server that scrapes schedulers and routers would count the values twice.
    """

    def __init__(self, placement: Placement, router_id: str) -> None:
        self._placement = placement
        self._router_id = router_id

    def collect(self) -> Iterator[Metric]:
        return map(_without_empty_version, self._loads())

    def _loads(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        by_model: dict[tuple[str, str], list[SchedulerConnection]] = {}
        for connection in self._placement.connections:
            if connection.info is not None:
                by_model.setdefault((connection.info.name, connection.info.version), []).append(connection)
        values: dict[tuple[str, str], tuple[float, ...]] = {}
        for model, connections in by_model.items():
            loads = [connection.load.last for connection in connections]
            throughputs = [connection.load.throughput() for connection in connections]
            usage = sum(load.num_used_blocks for load in loads) / max(1, sum(load.num_blocks for load in loads))
            num_host_blocks = sum(load.num_host_blocks for load in loads)
            values[model] = (
                sum(load.num_running for load in loads),
                sum(load.num_waiting for load in loads),
                usage,
                usage,
                sum(load.num_used_host_blocks for load in loads) / max(1, num_host_blocks),
                sum(prompt for prompt, _ in throughputs),
                sum(generation for _, generation in throughputs),
            )
        names = (
            ("vllm:num_requests_running", "Sequences in the schedulers' running batches."),
            ("vllm:num_requests_waiting", "Sequences that wait for admission."),
            ("vllm:kv_cache_usage_perc", "Used fraction of the KV cache's blocks, 0 to 1."),
            ("vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc."),
            ("vllm:cpu_cache_usage_perc", "Used fraction of the swap space, 0 to 1."),
            ("vllm:avg_prompt_throughput_toks_per_s", "Recent prompt tokens per second."),
            ("vllm:avg_generation_throughput_toks_per_s", "Recent generated tokens per second."),
        )
        for column, (name, help_text) in enumerate(names):
            gauge = GaugeMetricFamily(name, help_text, labels=_MODEL_LABELS)
            for model, row in values.items():
                gauge.add_metric(model, row[column])
            yield gauge
        counters = (
            ("vllm:num_preemptions", "num_preemptions", "Number of preemptions."),
            ("vllm:prefix_cache_queries", "num_prefix_cache_queries", "Tokens looked up in the prefix cache."),
            ("vllm:prefix_cache_hits", "num_prefix_cache_hits", "Tokens found in the prefix cache."),
        )
        for name, field, help_text in counters:
            # One series per scheduler, because a sum would decrease when a scheduler disappears. One series per router,
            # because routers get a scheduler's report at different times: a shared series could decrease between two
            # scrapes.
            counter = CounterMetricFamily(name, help_text, labels=[*_MODEL_LABELS, "scheduler", "router"])
            for model, connections in by_model.items():
                for connection in connections:
                    if connection.load.has_report:
                        labels = [*model, connection.address, self._router_id]
                        counter.add_metric(labels, getattr(connection.load.last, field))
            yield counter
        yield self._steps(by_model)

    def _steps(self, by_model: Mapping[tuple[str, str], Sequence[SchedulerConnection]]) -> HistogramMetricFamily:
        from prometheus_client.core import HistogramMetricFamily

        labels = [*_MODEL_LABELS, "scheduler", "router"]
        family = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens that each step computes.", labels=labels)
        for model, connections in by_model.items():
            for connection in connections:
                load = connection.load.last
                # A scheduler of another version can have other buckets, or none.
                if len(load.num_steps_by_tokens) == len(STEP_TOKENS) + 1:
                    buckets = _buckets(STEP_TOKENS, load.num_steps_by_tokens)
                    family.add_metric(
                        [*model, connection.address, self._router_id],
                        buckets=buckets,
                        sum_value=load.num_scheduled_tokens,
                    )
        return family


class RouterCollector:
    """Collects the metrics of this router's own requests. Every sample has the label `router`."""

    def __init__(self, requests: RequestMetrics, placement: Placement, router_id: str) -> None:
        self._requests = requests
        self._placement = placement
        self._router_id = router_id

    def collect(self) -> Iterator[Metric]:
        for metric in (*self._latencies(), *self._counts()):
            yield _without_empty_version(metric, router=self._router_id)

    def _latencies(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        names = (
            ("vllm:time_to_first_token_seconds", "time_to_first_token"),
            ("vllm:inter_token_latency_seconds", "inter_token_latency"),
            ("vllm:time_per_output_token_seconds", "inter_token_latency"),
            ("vllm:request_time_per_output_token_seconds", "mean_time_per_output_token"),
            ("vllm:e2e_request_latency_seconds", "e2e_request_latency"),
            ("quire:delivery_seconds", "delivery"),
        )
        for name, attribute in names:
            family = HistogramMetricFamily(name, attribute.replace("_", " ") + ", seconds.", labels=_MODEL_LABELS)
            for model, metrics in self._requests.models.items():
                histogram: Histogram = getattr(metrics, attribute)
                histogram.add_to(family, model)
            yield family
        lag = HistogramMetricFamily(
            "quire:event_loop_lag_seconds", "Delay of the event loop's timers, seconds.",
            labels=[],
        )  # fmt: skip
        self._requests.event_loop_lag.add_to(lag, [])
        yield lag

    def _counts(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        models = self._requests.models
        prompt = CounterMetricFamily("vllm:prompt_tokens", "Prompt tokens received.", labels=_MODEL_LABELS)
        generation = CounterMetricFamily("vllm:generation_tokens", "Tokens generated.", labels=_MODEL_LABELS)
        success = CounterMetricFamily(
            "vllm:request_success", "Choices that ended, by reason.", labels=[*_MODEL_LABELS, "finished_reason"]
        )
        for model, metrics in models.items():
            prompt.add_metric(model, metrics.num_prompt_tokens)
            generation.add_metric(model, metrics.num_generation_tokens)
            for reason, count in metrics.finished.items():
                success.add_metric([*model, reason], count)
        yield from (prompt, generation, success)
        ready = sum(connection.is_ready for connection in self._placement.connections)
        yield GaugeMetricFamily("quire:schedulers_ready", "Schedulers that this router can use.", value=ready)
        yield GaugeMetricFamily(
            "quire:schedulers_stale",
            "Schedulers that this router uses although discovery does not know them any more.",
            value=self._placement.roster.num_stale,
        )
        yield GaugeMetricFamily(
            "quire:model_name_conflicts",
            "Names and aliases that more than one served model claims.",
            value=self._placement.models.num_conflicts,
        )
        yield GaugeMetricFamily(
            "quire:sequences_parked",
            "Sequences that wait for a scheduler to reconnect.",
            value=self._placement.num_parked,
        )
        yield CounterMetricFamily(
            "quire:resubmissions",
            "Sequences that were sent again, to another scheduler or over a new stream to the same one.",
            value=self._placement.num_resubmissions,
        )
        yield CounterMetricFamily(
            "quire:slow_client_pauses",
            "Sequences that were paused because their clients did not read.",
            value=self._placement.num_pauses,
        )
        yield _labelled("quire:request_errors", "Requests answered with an error.", "status", self._requests.errors)
        yield _labelled(
            "quire:ignored_fields", "Unknown request fields that were ignored.", "method", self._requests.ignored_fields
        )


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Returns Prometheus' cumulative buckets: each upper bound, with the number of values up to it. `counts`: number of
    values in each bucket, the last one without an upper bound."""
    names = (*(str(float(bound)) for bound in bounds), "+Inf")
    return [(name, float(total)) for name, total in zip(names, accumulate(counts), strict=True)]


def registry_of(collectors: Iterable[Collector]) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return registry


def _labelled(name: str, help_text: str, label: str, counts: Counter[str]) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, help_text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
