"""Starts and stops the processes that a benchmark measures: whole stacks, or single parts as in containers."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.cli.child import bound_to_parent
from shared.python_child import child_environment, python_command


@dataclass(frozen=True, slots=True)
class RunningParts:
    """Addresses of a stack whose parts were started one by one."""

    http: str
    grpc: str  # through the gateway
    worker: str
    scheduler: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_healthy(url: str, process: subprocess.Popen[bytes], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise RuntimeError(f"{url} did not become healthy")


@contextmanager
def command(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a module of this source tree in a process until the block ends, or the thread that started it.

    `environment`: variables beside this process's own.
    """
    process = subprocess.Popen(
        bound_to_parent(*python_command(*arguments)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=child_environment() | {"PYTHONUNBUFFERED": "1"} | dict(environment or {}),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextmanager
def parts(
    *worker_arguments: str, scheduler_arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[RunningParts]:
    """Runs the four parts on Unix sockets, so that a benchmark can connect to each of them.

    `environment`: variables for all four.
    """
    run = partial(command, environment=environment)
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory, ExitStack() as stack:
        worker, scheduler, router = (f"unix:{Path(directory) / name}" for name in ("w", "s", "r"))
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        main = "quire.cli.main"
        stack.enter_context(run(main, "worker", *worker_arguments, "--listen", worker))
        stack.enter_context(run(main, "scheduler", "--listen", scheduler, "--worker", worker, *scheduler_arguments))
        stack.enter_context(run(main, "router", "--listen", router, "--scheduler", scheduler))
        gateway = stack.enter_context(run(main, "gateway", "--port", str(port), "--router", router))
        wait_healthy(url, gateway)
        yield RunningParts(url, f"127.0.0.1:{port}", worker, scheduler)


@contextmanager
def lone_worker(*arguments: str) -> Iterator[str]:
    """Runs a worker that no scheduler has claimed. Yields its address."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory:
        address = f"unix:{Path(directory) / 'w'}"
        with command("quire.cli.main", "worker", *arguments, "--listen", address):
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(60)
                wait_serving(channel)
            yield address


def wait_serving(channel: grpc.Channel, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    stub = health_pb2_grpc.HealthStub(channel)
    while stub.Check(health_pb2.HealthCheckRequest()).status != health_pb2.HealthCheckResponse.SERVING:
        if time.monotonic() > deadline:
            raise RuntimeError("the worker did not become ready")
        time.sleep(0.01)
