"""The processes of a stack that `quire serve` runs, and what it says of itself."""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import children


def part_of(supervisor: int, part: str) -> int:
    """The process of one part of the stack that the process `supervisor` keeps."""
    for pid in children(supervisor):
        with suppress(FileNotFoundError, ProcessLookupError):
            if part in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                return pid
    raise AssertionError(f"{part} does not run")


def pid_of(part: str, server: Server) -> int:
    """The process of one part of the stack that `quire serve` runs."""
    return part_of(server.pid, part)


def metric(server: Server, name: str) -> float:
    """Of the router's, its first sample."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=HANG_S) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def num_sequences(server: Server) -> float:
    """That the scheduler has, as it said a moment ago."""
    return metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting")
