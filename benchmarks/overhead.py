"""What Envoy, router and scheduler add to a worker: the same greedy completion over HTTP through all of them, and on
the worker's own step stream, where each plan is sent when the result before it is in.

The scheduler keeps two plans in flight, so per token it can be ahead of the direct caller, who pays the round trip.
"""

from __future__ import annotations

import http.client
import statistics
import time
from array import array
from queue import SimpleQueue
from urllib.parse import urlsplit

import grpc

from benchmarks.http import PROMPT, Timing, stream_completion
from benchmarks.stack import lone_worker, parts
from quire.inference.v1 import sampling_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.scheduler.converters import plan_to_proto, result_from_proto
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import SequenceRequest

GREEDY = sampling_pb2.SamplingParams(temperature=0, top_p=1, repetition_penalty=1)


class DirectCaller:
    """Claims a worker and runs one sequence at a time on it, one plan in flight."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._queue: SimpleQueue[worker_pb2.RunRequest | None] = SimpleQueue()
        self._queue.put(worker_pb2.RunRequest(claim=worker_pb2.Claim(scheduler_id="bench")))
        self._responses = worker_pb2_grpc.WorkerServiceStub(self._channel).Run(iter(self._queue.get, None))
        hello = next(self._responses).hello
        self._epoch = hello.epoch
        self._core = Scheduler(
            CoreConfig(
                hello.num_blocks,
                hello.block_size,
                hello.max_num_seqs,
                hello.max_num_batched_tokens,
                hello.model.max_model_len,
            )
        )

    def complete(self, max_tokens: int) -> Timing:
        start = time.perf_counter()
        self._core.submit(SequenceRequest("one", array("I", PROMPT), max_tokens, sampling=GREEDY))
        first, tokens = 0.0, 0
        while (plan := self._core.schedule()) is not None:
            self._queue.put(worker_pb2.RunRequest(plan=plan_to_proto(plan, self._epoch)))
            tokens += len(self._core.apply(result_from_proto(next(self._responses).result)).tokens)
            first = first or time.perf_counter() - start
        return Timing(first, time.perf_counter() - start, tokens)

    def close(self) -> None:
        self._queue.put(None)
        self._channel.close()


def per_token_s(timings: list[Timing]) -> float:
    return statistics.median((t.whole_s - t.first_token_s) / (t.tokens - 1) for t in timings)


def measure(rounds: int = 15, max_tokens: int = 201) -> dict[str, float]:
    """Milliseconds, medians. The worker serves one owner at a time, so each way has a worker of its own, and they take
    turns."""
    with parts() as through, lone_worker() as address:
        direct = DirectCaller(address)
        connection = http.client.HTTPConnection(urlsplit(through.http).netloc)
        stack_timings, direct_timings = [], []
        for round_number in range(rounds + 2):
            a = stream_completion(through.http, max_tokens, connection)
            b = direct.complete(max_tokens)
            if round_number >= 2:  # warm
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
