"""Finds the processes of a stack that `quire serve` runs, and reads its metrics."""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import children


def part_of(supervisor: int, part: str) -> int:
    """Returns the process id of one part of the stack that the process `supervisor` runs."""
    for pid in children(supervisor):
        with suppress(FileNotFoundError, ProcessLookupError):
            if part in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                return pid
    raise AssertionError(f"the {part} is not running")


def pid_of(part: str, server: Server) -> int:
    """Returns the process id of one part of the stack that `quire serve` runs."""
    return part_of(server.pid, part)


def metric(server: Server, name: str) -> float:
    """Returns the first sample of a metric of the router."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=HANG_S) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def num_sequences(server: Server) -> float:
    """Returns the number of sequences in the scheduler, according to its last load report."""
    return metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting")
