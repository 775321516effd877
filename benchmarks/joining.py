"""Measures how soon a part that is added is in use, and how soon /v1/models is true, while clients send requests.

A gateway, a router, a scheduler and two workers with the bundled model, which find each other in a real Redis. A part
is in use when it works on a request: a worker has run a step, a scheduler runs a sequence, a router has received a
prompt. Then the part is told to end, and the next round begins.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.pauses.fleet import Process
from benchmarks.pauses.streams import random_prompt
from services.scheduler.main import SERVICE as SCHEDULER_SERVICE
from shared.grpc_server import LIVENESS, READINESS
from shared.python_child import HOME, python_command
from tests.fakes.ports import free_port
from tests.fakes.redis_server import redis_server

MODEL, SECOND_MODEL = "quire-chat", "quire-chat-draft"
NUM_CLIENTS = 6
POLL_S = 0.01
TIMEOUT_S = 120.0
# The metric that shows that a part is at work, and the health service that answers SERVING once the part can be used.
AT_WORK = {
    "worker": ("quire:worker_steps_total", READINESS),
    # Ready only with a worker, which it gets from the other scheduler.
    "scheduler": ("vllm:num_requests_running", LIVENESS),
    "router": ("vllm:prompt_tokens_total", READINESS),
}


@dataclass(slots=True)
class Part:
    """A running part. `metrics_port`: of its Prometheus metrics."""

    process: Process
    metrics_port: int

    def serves(self, service: str) -> bool:
        with grpc.insecure_channel(self.process.address) as channel, contextlib.suppress(grpc.RpcError):
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False

    def has(self, metric: str) -> bool:
        """Whether a series of the metric is above 0."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            url = f"http://127.0.0.1:{self.metrics_port}/metrics"
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                lines = response.read().decode().splitlines()
            samples = [line.rpartition(" ") for line in lines if line.partition("{")[0].partition(" ")[0] == metric]
            return any(float(value) > 0 for _, _, value in samples)
        return False

    def end(self) -> None:
        """Tells the part to end, and waits until it has."""
        self.process.signal(signal.SIGTERM)
        self.process.wait()


@dataclass(slots=True)
class Clients:
    """Threads that send short requests, one after another, until the block ends."""

    url: str
    # Appending to a list is one step for threads; adding to a number is not.
    answers: list[None] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def sending(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._send) for _ in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def _send(self) -> None:
        while not self._is_over.is_set():
            # Equal prompts would all go to the scheduler that has them in its cache.
            request_body = {"model": MODEL, "prompt": random_prompt(20), "max_tokens": 32, "ignore_eos": True}
            body = json.dumps(request_body).encode()
            request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                    response.read()
                self.answers.append(None)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(str(error))


class Fleet:
    """`directory`: for sockets. `stack`: ends the parts that still run."""

    def __init__(self, directory: Path, redis_url: str, stack: ExitStack) -> None:
        self._directory = directory
        self._redis = ("--redis", redis_url)
        self._stack = stack
        self._count = 0
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(2):
            self.worker(MODEL)
        self.scheduler(MODEL)
        self.router()
        gateway = python_command("quire", "gateway", "--host", "127.0.0.1", "--port", str(port), *self._redis)
        stack.enter_context(Process(self.url, gateway))
        until(lambda: self.models() == {MODEL})

    def worker(self, model: str) -> Part:
        directory = str(HOME / "quire" / "models" / model)
        options = ("--served-model-name", model, "--num-threads", "1", "--num-gpu-blocks-override", "1024")
        return self._start("worker", directory, *options)

    def scheduler(self, model: str) -> Part:
        return self._start("scheduler", "--worker-model", model)

    def router(self) -> Part:
        return self._start("router")

    def _start(self, kind: str, *options: str) -> Part:
        self._count += 1
        address, port = f"unix:{self._directory}/{self._count}", free_port()
        words = (kind, *options, "--listen", address, "--metrics-port", str(port), *self._redis)
        return Part(self._stack.enter_context(Process(address, python_command("quire", *words))), port)

    def models(self) -> set[str]:
        """Returns what /v1/models lists; nothing while the gateway refuses requests."""
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=TIMEOUT_S) as response:
                return {model["id"] for model in json.load(response)["data"]}
        except (OSError, http.client.HTTPException):
            return set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the fleet did not change as expected")
        time.sleep(POLL_S)


def seconds_until(condition: Callable[[], bool]) -> float:
    start = time.monotonic()
    until(condition)
    return time.monotonic() - start


def _joined(start: Callable[[], Part], kind: str) -> float:
    """Adds a part and lets it end. Returns the seconds from its health to its work."""
    metric, service = AT_WORK[kind]
    part = start()
    until(lambda: part.serves(service))
    seconds = seconds_until(lambda: part.has(metric))
    part.end()
    return seconds


def _second_model(fleet: Fleet, end: signal.Signals) -> tuple[float, float]:
    """Adds the parts of another model, and sends its scheduler the signal `end`. Returns the seconds from the moment at
    which the scheduler has a worker until the model is listed, and from the signal until it is not."""
    worker, scheduler = fleet.worker(SECOND_MODEL), fleet.scheduler(SECOND_MODEL)
    until(lambda: scheduler.serves(SCHEDULER_SERVICE))
    listed = seconds_until(lambda: SECOND_MODEL in fleet.models())
    scheduler.process.signal(end)
    gone = seconds_until(lambda: fleet.models() == {MODEL})
    scheduler.process.wait()
    worker.end()
    return listed, gone


def _figures(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {f"{name}_median_s": statistics.median(seconds), f"{name}_worst_s": max(seconds)}


def measure(rounds: int = 10) -> dict[str, float]:
    figures: dict[str, float] = {"rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as name, ExitStack() as stack:
        server = stack.enter_context(redis_server(Path(name)))
        fleet = Fleet(Path(name), server.url, stack)
        clients = Clients(fleet.url)
        with clients.sending():
            starts = {
                "worker": lambda: fleet.worker(MODEL),
                "scheduler": lambda: fleet.scheduler(MODEL),
                "router": fleet.router,
            }
            for kind, start in starts.items():
                figures |= _figures(f"{kind}_in_use", [_joined(start, kind) for _ in range(rounds)])
            ends, losses = (
                [_second_model(fleet, end) for _ in range(rounds)] for end in (signal.SIGTERM, signal.SIGKILL)
            )
        figures |= _figures("model_listed", [listed for listed, _ in (*ends, *losses)])
        figures |= _figures("model_gone", [gone for _, gone in ends])
        figures |= _figures("model_lost", [gone for _, gone in losses])
        figures |= {"requests_answered": len(clients.answers), "requests_failed": len(clients.failures)}
    return figures
