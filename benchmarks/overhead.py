"""Measures the latency that Envoy, router and scheduler add: the same greedy completion over HTTP through all parts,
and directly on the worker's step stream, where the real core plans as far ahead as the scheduler does.
"""

from __future__ import annotations

import http.client
import statistics
from array import array
from urllib.parse import urlsplit

from benchmarks.direct import GREEDY, DirectCaller, Timing
from benchmarks.http import PROMPT, stream_completion
from benchmarks.stack import lone_worker, parts
from services.scheduler.core.request import Generate
from services.scheduler.worker_request import WorkerRequest


def per_token_s(timings: list[Timing]) -> float:
    return statistics.median((t.whole_s - t.first_token_s) / (t.tokens - 1) for t in timings)


def measure(rounds: int = 15, max_tokens: int = 201) -> dict[str, float]:
    """Returns medians in milliseconds. A worker serves one owner at a time, so there is one worker for each of the two
    ways. They are measured alternately."""
    with parts() as through, lone_worker() as address:
        direct = DirectCaller(address, run_ahead=2)
        connection = http.client.HTTPConnection(urlsplit(through.http).netloc)
        stack_timings, direct_timings = [], []
        for round_number in range(rounds + 2):
            a = stream_completion(through.http, max_tokens, connection)
            b = direct.run([WorkerRequest("one", array("I", PROMPT), Generate(max_tokens), sampling=GREEDY)])
            if round_number >= 2:  # the first two rounds are warm-up
                stack_timings.append(a)
                direct_timings.append(b)
        direct.close()
    first = statistics.median(t.first_token_s for t in stack_timings)
    direct_first = statistics.median(t.first_token_s for t in direct_timings)
    return {
        "first_token_ms": 1e3 * first,
        "worker_first_token_ms": 1e3 * direct_first,
        "per_request_overhead_ms": 1e3 * (first - direct_first),
        "per_token_ms": 1e3 * per_token_s(stack_timings),
        "worker_per_token_ms": 1e3 * per_token_s(direct_timings),
        "per_token_overhead_ms": 1e3 * (per_token_s(stack_timings) - per_token_s(direct_timings)),
    }
