"""The report of a simulation: latencies, throughput, prefix cache hits and memory use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from quire.simulator.cluster import Layout, SimulationResult
from quire.simulator.group import SAMPLE_S
from quire.simulator.traces import Request

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Statistics of a latency in seconds. Refused requests count as infinite latencies, so percentiles and the maximum
    can be infinite. The mean covers served requests only.
    """

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: NDArray[np.float64], num_refused: int = 0) -> Latency | None:
        if not len(seconds):
            return None
        every = np.concatenate((seconds, np.full(num_refused, np.inf)))
        p50, p90, p95, p99 = (float(value) for value in np.percentile(every, PERCENTILES, method="higher"))
        return cls(float(seconds.mean()), p50, p90, p95, p99, float(every.max()))


@dataclass(frozen=True, slots=True)
class Series:
    """The state of the whole cluster over time, sampled every `interval_s` seconds."""

    num_running: list[float]
    num_waiting: list[float]
    kv_cache_share: list[float]  # fraction of blocks that sequences hold
    interval_s: float = SAMPLE_S


@dataclass(frozen=True, slots=True)
class Report:
    num_requests: int
    num_completed: int
    num_refused: int
    num_too_long: int
    num_groups: int
    num_schedulers: int
    num_routers: int
    duration_s: float  # from the first request to the last token
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    time_to_first_token: Latency | None
    time_between_tokens: Latency | None
    request_latency: Latency | None
    prefix_cache_hit_share: float  # fraction of prompt tokens found in the prefix cache
    num_preemptions: int
    num_swapped_out_blocks: int
    num_swapped_in_blocks: int
    num_steps: int
    worker_busy_share: float
    kv_cache_mean_share: float
    kv_cache_peak_share: float  # largest fraction of a worker's blocks that was ever in use
    series: Series

    def meets(self, target: Target) -> bool:
        """Returns whether the target's percentiles of the time to first token and of the time between tokens stay
        within their limits. Refused requests count as infinite times to first token.
        """
        if self.time_to_first_token is None:
            return False
        name = f"p{target.percentile}"
        is_soon = getattr(self.time_to_first_token, name) <= target.time_to_first_token_s
        between = self.time_between_tokens
        return is_soon and (between is None or getattr(between, name) <= target.time_between_tokens_s)

    def as_dict(self) -> dict[str, object]:
        """Returns the report as a dict for JSON. Infinity becomes None, because JSON has no infinity."""

        def finite(pairs: list[tuple[str, object]]) -> dict[str, object]:
            return {name: None if value == math.inf else value for name, value in pairs}

        return asdict(self, dict_factory=finite)


@dataclass(frozen=True, slots=True)
class Target:
    """A service level objective (SLO)."""

    time_to_first_token_s: float
    time_between_tokens_s: float
    percentile: int = 99  # one of PERCENTILES


@dataclass(frozen=True, slots=True)
class Samples:
    """The latencies of all served requests and of their tokens, in seconds. The plots show them."""

    time_to_first_token: NDArray[np.float64]
    time_between_tokens: NDArray[np.float64]
    request_latency: NDArray[np.float64]


def samples_of(requests: Sequence[Request], result: SimulationResult) -> Samples:
    served = result.outcome.served
    arrivals = np.array([requests[one.request_index].arrival_s for one in served])
    between = [np.frombuffer(group.times_between_tokens) for group in result.outcome.groups]
    return Samples(
        time_to_first_token=np.array([one.first_token_s for one in served]) - arrivals,
        time_between_tokens=np.concatenate(between),
        request_latency=np.array([one.last_token_s for one in served]) - arrivals,
    )


def report_of(layout: Layout, requests: Sequence[Request], result: SimulationResult) -> Report:
    samples = samples_of(requests, result)
    served, groups = result.outcome
    counters = [group.counters for group in groups]
    end = max((one.last_token_s for one in served), default=0.0)
    duration = max(end - requests[0].arrival_s, 1e-9)
    used = _padded([[sample.num_used_blocks for sample in group.samples] for group in groups]) / layout.core.num_blocks
    queries = sum(one.prefix_cache_queries for one in counters)
    return Report(
        num_requests=len(requests),
        num_completed=len(served),
        num_refused=len(result.refused),
        num_too_long=len(result.too_long),
        num_groups=layout.num_groups,
        num_schedulers=layout.num_schedulers,
        num_routers=layout.num_routers,
        duration_s=duration,
        requests_per_s=len(served) / duration,
        prompt_tokens_per_s=sum(requests[one.request_index].num_prompt_tokens for one in served) / duration,
        output_tokens_per_s=sum(one.num_tokens for one in served) / duration,
        time_to_first_token=Latency.of(samples.time_to_first_token, len(result.refused)),
        time_between_tokens=Latency.of(samples.time_between_tokens),
        request_latency=Latency.of(samples.request_latency, len(result.refused)),
        prefix_cache_hit_share=sum(one.prefix_cache_hits for one in counters) / max(1, queries),
        num_preemptions=sum(one.preemptions for one in counters),
        num_swapped_out_blocks=sum(one.swapped_out_blocks for one in counters),
        num_swapped_in_blocks=sum(one.swapped_in_blocks for one in counters),
        num_steps=sum(group.num_steps for group in groups),
        worker_busy_share=sum(group.busy_s for group in groups) / (duration * len(groups)),
        kv_cache_mean_share=float(used.mean()) if used.size else 0.0,
        kv_cache_peak_share=max(group.peak_used_blocks for group in groups) / layout.core.num_blocks,
        series=Series(
            num_running=_padded([[s.num_running for s in group.samples] for group in groups]).sum(axis=0).tolist(),
            num_waiting=_padded([[s.num_waiting for s in group.samples] for group in groups]).sum(axis=0).tolist(),
            kv_cache_share=used.mean(axis=0).tolist(),
        ),
    )


def _padded(rows: list[list[int]]) -> NDArray[np.float64]:
    """Returns an array [groups, samples]. Shorter rows are padded with 0, because a group that has finished is idle."""
    length = max(map(len, rows), default=0)
    return np.array([row + [0] * (length - len(row)) for row in rows], dtype=np.float64)


def table(report: Report) -> str:
    """Formats the report for a terminal."""
    lines = [
        f"{report.num_groups} workers, {report.num_schedulers} schedulers, {report.num_routers} routers; "
        f"{report.num_completed:,} of {report.num_requests:,} requests in {report.duration_s:,.1f} s"
    ]
    if report.num_refused:
        lines.append(f"{report.num_refused:,} were refused: the schedulers' queues were full")
    if report.num_too_long:
        lines.append(f"{report.num_too_long:,} were skipped: they are longer than the context")
    lines += [
        "",
        f"{'milliseconds':<24}{'mean':>10}{'p50':>10}{'p90':>10}{'p95':>10}{'p99':>10}{'max':>10}",
        _latency_line("time to first token", report.time_to_first_token),
        _latency_line("time between tokens", report.time_between_tokens),
        _latency_line("whole request", report.request_latency),
        "",
        f"throughput              {report.requests_per_s:,.2f} requests/s, {report.prompt_tokens_per_s:,.0f} prompt "
        f"tokens/s, {report.output_tokens_per_s:,.0f} output tokens/s",
        f"prefix cache hits       {report.prefix_cache_hit_share:.1%} of prompt tokens",
        f"preemptions             {report.num_preemptions:,}",
        f"copied to the host      {report.num_swapped_out_blocks:,} blocks, and {report.num_swapped_in_blocks:,} back",
        f"workers busy            {report.worker_busy_share:.1%} of the time, {report.num_steps:,} steps",
        f"KV cache in use         {report.kv_cache_mean_share:.1%} on average, "
        f"{report.kv_cache_peak_share:.1%} at most on the fullest worker",
    ]
    return "\n".join(lines)


def _latency_line(name: str, latency: Latency | None) -> str:
    if latency is None:
        return f"{name:<24}{'none':>10}"
    return f"{name:<24}" + "".join(f"{1000 * value:>10,.1f}" for value in asdict(latency).values())
