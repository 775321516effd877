"""Starts scheduler, routers and worker as processes of this host, from the source tree and without Envoy."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.gpu.machine import ROOT
from quire.cli.child import bound_to_parent
from shared.python_child import child_environment, python_command
from shared.status import Status, parse_status

START_TIMEOUT_S = 300.0


@contextmanager
def stack(folder: Path, worker_arguments: Sequence[str], num_routers: int) -> Iterator[list[str]]:
    """Starts all parts and yields the routers' addresses once they are ready. Writes logs to `folder`. Raises
    RuntimeError if a part does not start."""
    worker, scheduler = (f"unix:{folder / name}.sock" for name in ("worker", "scheduler"))
    routers = [f"unix:{folder}/router{index}.sock" for index in range(num_routers)]
    with ExitStack() as running:
        start = [
            running.enter_context(_part(folder, "worker", *worker_arguments, "--listen", worker)),
            running.enter_context(_part(folder, "scheduler", "--listen", scheduler, "--worker", worker)),
            *(running.enter_context(_part(folder, "router", "--listen", a, "--scheduler", scheduler)) for a in routers),
        ]
        deadline = time.monotonic() + START_TIMEOUT_S
        for part in start:
            part.wait_ready(deadline)
        yield routers


class _Part:
    """A process, and the pipe on which it reports the progress of its start."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], status_fd: int, log: Path) -> None:
        self._name, self._process, self._log = name, process, log
        self._lines = os.fdopen(status_fd, "rb", buffering=0)  # unbuffered, because select does not see buffered data

    def wait_ready(self, deadline: float) -> None:
        status = Status("starting")
        while status.state == "starting":
            ready, _, _ = select.select([self._lines], [], [], max(0.0, deadline - time.monotonic()))
            line = self._lines.readline() if ready else b""
            if not line:
                raise RuntimeError(f"the {self._name} did not become ready:\n{self._log.read_text()[-4000:]}")
            status = parse_status(line)
        if status.state == "failed":
            raise RuntimeError(f"the {self._name} did not start: {status.detail}")

    def stop(self) -> None:
        self._lines.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


@contextmanager
def _part(folder: Path, name: str, *arguments: str) -> Iterator[_Part]:
    reader, writer = os.pipe()
    log = folder / f"{name}-{writer}.log"
    command = python_command("quire.cli.main", name, *arguments, "--status-fd", str(writer))
    with log.open("wb") as output:
        process = subprocess.Popen(
            bound_to_parent(*command),
            stdout=output,
            stderr=output,
            pass_fds=(writer,),
            cwd=ROOT,
            env=child_environment(),
        )
    os.close(writer)
    part = _Part(name, process, reader, log)
    try:
        yield part
    finally:
        part.stop()
