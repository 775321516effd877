"""Computes the metrics of `vllm bench serve` from the measurements of all requests."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.bench.measurement import Measurement

# Names of the latency metrics, in the order of the report.
LATENCIES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics of a latency in milliseconds, all 0 without measurements. `percentiles`: pairs of percent and
    value."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Results of a benchmark. Tokens and rates count successful requests only. Rates are per second of `duration`."""

    completed: int
    failed: int
    duration: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    # Requests per second that met every objective; None without objectives.
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    # Largest number of output tokens in one second. Seconds are counted from the start of the first request.
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    latencies: Mapping[str, Distribution]


def summarize(
    measurements: Sequence[Measurement],
    duration: float,
    percents: Sequence[float],
    objectives: Mapping[str, float],
) -> Metrics:
    """Computes the metrics. `duration`: seconds. `percents`: percentiles of each latency to compute. `objectives`:
    limits on ttft, tpot and e2el in milliseconds; a request counts towards goodput if it meets all of them."""
    good = [measurement for measurement in measurements if not measurement.error]
    total_input = sum(measurement.input_len for measurement in good)
    total_output = sum(measurement.output_len for measurement in good)
    seconds = {
        "ttft": [measurement.ttft for measurement in good],
        "tpot": [measurement.tpot for measurement in good if measurement.tpot is not None],
        "itl": [gap for measurement in good for gap in measurement.inter_token_latencies],
        "e2el": [measurement.latency for measurement in good],
    }
    num_met = sum(meets(measurement, objectives) for measurement in good)
    return Metrics(
        completed=len(good),
        failed=len(measurements) - len(good),
        duration=duration,
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=len(good) / duration,
        request_goodput=num_met / duration if objectives else None,
        output_throughput=total_output / duration,
        total_token_throughput=(total_input + total_output) / duration,
        max_output_tokens_per_s=peak_output(good),
        max_concurrent_requests=peak_concurrency(good),
        latencies={name: distribution(seconds[name], percents) for name in LATENCIES},
    )


def meets(measurement: Measurement, objectives: Mapping[str, float]) -> bool:
    """Returns whether a request met all objectives (goodput; Zhong et al., DistServe, OSDI 2024, section 2)."""
    seconds = {"ttft": measurement.ttft, "tpot": measurement.tpot or 0.0, "e2el": measurement.latency}
    return all(1e3 * seconds[name] <= limit for name, limit in objectives.items())


def peak_output(measurements: Sequence[Measurement]) -> float:
    """Returns the largest number of output tokens that arrived in one second. Seconds are counted from the start of the
    first request. Assumes that all chunks of an answer have the same number of tokens."""
    origin = min((measurement.start for measurement in measurements), default=0.0)
    tokens: defaultdict[int, float] = defaultdict(float)
    for measurement in measurements:
        # Tokens per chunk. vLLM counts each chunk as one token, which gives the same result if every chunk has one
        # token.
        weight = measurement.output_len / len(measurement.chunk_times)
        for moment in measurement.chunk_times:
            tokens[int(moment - origin)] += weight
    return max(tokens.values(), default=0.0)


def peak_concurrency(measurements: Sequence[Measurement]) -> int:
    """Returns the maximum number of concurrent requests. Two requests are not concurrent if one of them starts at the
    moment at which the other ends."""
    events = [(measurement.start, 1) for measurement in measurements]
    events += [(measurement.end, -1) for measurement in measurements]
    running = peak = 0
    for _, change in sorted(events):
        running += change
        peak = max(peak, running)
    return peak


def distribution(seconds: Sequence[float], percents: Sequence[float]) -> Distribution:
    values = sorted(1e3 * value for value in seconds) or [0.0]
    mean = statistics.fmean(values)
    return Distribution(
        mean,
        percentile(values, 50),
        math.sqrt(statistics.fmean((value - mean) ** 2 for value in values)),
        tuple((percent, percentile(values, percent)) for percent in percents),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile of sorted values, interpolated linearly between the two nearest values (numpy's default)."""
    position = (len(values) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (position - below)
