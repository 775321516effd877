"""The whole stack as a user starts it: `quire serve` with real Envoy, router, scheduler and worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.worker_script import WorkerScript
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S, wait_until
from tests.fidelity.tap import Tap

ROOT = Path(__file__).parents[2]
STORIES = ROOT.parent / "shared" / "models" / "stories260k"


@dataclass(frozen=True)
class Server:
    port: int
    model: str
    pid: int
    # Controls the server's worker.
    script: WorkerScript
    # The port without the tap, which supports only HTTP.
    direct_port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


_TAPS: list[Tap] = []


@pytest.fixture(autouse=True)
def answers_are_as_documented() -> Iterator[None]:
    """Checks that every answer of a test matches our OpenAPI document and OpenAI's published schema."""
    yield
    assert [problem for tap in _TAPS for problem in tap.take_problems()] == []


@contextmanager
def serving(*arguments: str, model: str, output: IO[str] | None = None) -> Iterator[Server]:
    """Runs `quire serve` until the block ends, and checks every answer over HTTP. If the server does not start or the
    block fails, prints the server's output. `output`: the file for it; without one, a
    temporary file."""
    port = free_port()
    command = [sys.executable, "-m", "quire.cli.main", "serve", *arguments, "--port", str(port)]
    with (
        nullcontext(output) if output else tempfile.TemporaryFile("w+") as log,
        tempfile.TemporaryDirectory(prefix="quire-test-") as directory,
    ):
        script = WorkerScript(Path(directory))
        environment = os.environ | script.environment
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)
        try:
            wait_healthy(process, port, log.fileno())
            with Tap(port) as tap:
                _TAPS.append(tap)
                yield Server(tap.port, model, process.pid, script, port)
                _TAPS.remove(tap)
            assert tap.take_problems() == []
        except BaseException:
            print(os.pread(log.fileno(), 100_000, 0).decode(errors="replace"))
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0


def wait_healthy(process: subprocess.Popen[bytes], port: int, log: int) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"quire serve did not start:\n{os.pread(log, 100_000, 0).decode()}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=HANG_S).close()
        except OSError:
            return False
        return True

    wait_until(answers, 0.1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server with the bundled model."""
    with serving(model="quire-chat") as running:
        yield running


@pytest.fixture(scope="session")
def stories() -> Iterator[Server]:
    """A server with a model whose greedy text is published."""
    if not STORIES.exists():
        pytest.skip(f"{STORIES} does not exist")
    with serving(str(STORIES), model="stories260k") as running:
        yield running
