"""The stack under attack: the four parts with the bundled model, and their process ids."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.abuse.attack import Target
from benchmarks.stack import command, free_port, wait_healthy


@dataclass(frozen=True, slots=True)
class RunningStack:
    target: Target
    # Process ids by part.
    processes: Mapping[str, int]


@contextmanager
def running_stack(*worker_arguments: str) -> Iterator[RunningStack]:
    with tempfile.TemporaryDirectory(prefix="quire-abuse-") as directory, ExitStack() as stack:
        worker, scheduler, router = (f"unix:{Path(directory) / name}" for name in ("w", "s", "r"))
        port, main = free_port(), "quire.cli.main"
        parts = {
            "worker": stack.enter_context(command(main, "worker", *worker_arguments, "--listen", worker)),
            "scheduler": stack.enter_context(command(main, "scheduler", "--listen", scheduler, "--worker", worker)),
            "router": stack.enter_context(command(main, "router", "--listen", router, "--scheduler", scheduler)),
            "gateway": stack.enter_context(command(main, "gateway", "--port", str(port), "--router", router)),
        }
        wait_healthy(f"http://127.0.0.1:{port}", parts["gateway"])
        processes = {name: process.pid for name, process in parts.items()}
        yield RunningStack(Target("127.0.0.1", port, scheduler), processes)
