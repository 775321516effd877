"""Formats the results as `vllm bench serve` does, so that scripts for its table or its JSON file can read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.bench.metrics import Metrics

_WIDTH = 50
_HEADINGS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """The configured load. `request_rate` can be infinite."""

    backend: str
    model: str
    num_prompts: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None


def table(metrics: Metrics, traffic: Traffic, shown: Sequence[str]) -> str:
    """Formats the results as a table. `shown`: names of the latencies to include."""
    return "\n".join(_lines(metrics, traffic, shown))


def _lines(metrics: Metrics, traffic: Traffic, shown: Sequence[str]) -> Iterator[str]:
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    yield _line("Successful requests:", metrics.completed)
    yield _line("Failed requests:", metrics.failed)
    if traffic.max_concurrency is not None:
        yield _line("Maximum request concurrency:", traffic.max_concurrency)
    if math.isfinite(traffic.request_rate):
        yield _line("Request rate configured (RPS):", traffic.request_rate)
    yield _line("Benchmark duration (s):", metrics.duration)
    yield _line("Total input tokens:", metrics.total_input_tokens)
    yield _line("Total generated tokens:", metrics.total_output_tokens)
    yield _line("Request throughput (req/s):", metrics.request_throughput)
    if metrics.request_goodput is not None:
        yield _line("Request goodput (req/s):", metrics.request_goodput)
    yield _line("Output token throughput (tok/s):", metrics.output_throughput)
    yield _line("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s)
    yield _line("Peak concurrent requests:", float(metrics.max_concurrent_requests))
    yield _line("Total token throughput (tok/s):", metrics.total_token_throughput)
    for name in shown:
        distribution = metrics.latencies[name]
        yield f"{_HEADINGS[name]:-^{_WIDTH}}"
        yield _line(f"Mean {name.upper()} (ms):", distribution.mean)
        yield _line(f"Median {name.upper()} (ms):", distribution.median)
        for percent, value in distribution.percentiles:
            yield _line(f"P{percent:g} {name.upper()} (ms):", value)
    yield "=" * _WIDTH


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value if isinstance(value, int) else format(value, '.2f')}"


def result(metrics: Metrics, traffic: Traffic, date: str) -> dict[str, object]:
    """Returns the content of the JSON file of results. `date`: YYYYMMDD-hhmmss."""
    values: dict[str, object] = {
        "date": date,
        "endpoint_type": traffic.backend,
        "backend": traffic.backend,
        "label": None,
        "model_id": traffic.model,
        "tokenizer_id": None,
        "num_prompts": traffic.num_prompts,
        "request_rate": _finite(traffic.request_rate),
        "burstiness": _finite(traffic.burstiness),
        "max_concurrency": traffic.max_concurrency,
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
    }
    for name, distribution in metrics.latencies.items():
        values[f"mean_{name}_ms"] = distribution.mean
        values[f"median_{name}_ms"] = distribution.median
        values[f"std_{name}_ms"] = distribution.std
        values |= {f"p{percent:g}_{name}_ms": value for percent, value in distribution.percentiles}
    return values


def _finite(value: float) -> float | str:
    """Returns "inf" for infinity, which JSON cannot represent."""
    return value if math.isfinite(value) else "inf"


def file_name(traffic: Traffic, date: str) -> str:
    concurrency = "" if traffic.max_concurrency is None else f"-concurrency{traffic.max_concurrency}"
    model = traffic.model.rpartition("/")[2]
    return f"{traffic.backend}-{traffic.request_rate}qps{concurrency}-{model}-{date}.json"
