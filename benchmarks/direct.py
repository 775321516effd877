"""Drives a worker directly with the scheduler's real core, without scheduler, router and gateway processes."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import grpc

from quire.inference.v1 import sampling_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.scheduler.config import SchedulerConfig
from services.scheduler.converters import WorkerHello, hello_from_proto, plan_to_proto, result_from_proto
from services.scheduler.core.counters import Counters
from services.scheduler.core.request import Generate
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.worker_groups.worker_options import core_config
from services.scheduler.worker_request import WorkerRequest

GREEDY = sampling_pb2.SamplingParams(temperature=0, top_p=1, repetition_penalty=1)


@dataclass(frozen=True, slots=True)
class Timing:
    first_token_s: float
    whole_s: float
    tokens: int


def random_request(key: Hashable, num_prompt: int, num_output: int, chance: random.Random) -> WorkerRequest:
    """Returns a greedy request whose prompt tokens are in the vocabulary of every shape in shapes.py."""
    prompt = array("I", [chance.randrange(3, 8000) for _ in range(num_prompt)])
    return WorkerRequest(key, prompt, Generate(num_output), sampling=GREEDY)


class DirectCaller:
    """Claims a worker until `close`. `limits`: fields of the core's configuration that replace the worker's own values.
    `run_ahead`: number of plans in flight."""

    def __init__(self, address: str, run_ahead: int = 1, **limits: Any) -> None:
        self._run_ahead = run_ahead
        self._channel = grpc.insecure_channel(address)
        hello = self._claim()
        self._epoch = hello.epoch
        self._core: Scheduler[WorkerRequest] = Scheduler(
            replace(core_config(hello, SchedulerConfig(target_tbt_ms=0)), **limits)
        )

    def _claim(self) -> WorkerHello:
        deadline = time.monotonic() + 10
        while True:
            self._queue: SimpleQueue[worker_pb2.RunRequest | None] = SimpleQueue()
            self._queue.put(worker_pb2.RunRequest(claim=worker_pb2.Claim(scheduler_id="bench")))
            self._responses = worker_pb2_grpc.WorkerServiceStub(self._channel).Run(iter(self._queue.get, None))
            try:
                return hello_from_proto(next(self._responses).hello)
            except grpc.RpcError:
                # The worker still ends the steps of its last owner.
                self._queue.put(None)
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    @property
    def counters(self) -> Counters:
        return self._core.counters

    def run(self, requests: Iterable[WorkerRequest]) -> Timing:
        """Runs all requests to their last tokens."""
        start = time.perf_counter()
        for request in requests:
            self._core.submit(request)
        first, tokens = 0.0, 0
        while self._core.num_running + self._core.num_waiting:
            while self._core.num_in_flight < self._run_ahead and (plan := self._core.schedule()) is not None:
                self._queue.put(worker_pb2.RunRequest(plan=plan_to_proto(plan, self._epoch)))
            tokens += len(self._core.apply(result_from_proto(next(self._responses).result)).tokens)
            if tokens and not first:
                first = time.perf_counter() - start
        return Timing(first, time.perf_counter() - start, tokens)

    def close(self) -> None:
        self._queue.put(None)
        for _ in self._responses:  # wait for the end of the stream
            pass
        self._channel.close()
