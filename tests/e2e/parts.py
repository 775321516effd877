"""The processes of a stack that `quire serve` runs, and what it says of itself."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.e2e.conftest import Server
from tests.fakes.waiting import HANG_S


def pid_of(part: str, server: Server) -> int:
    """The process of one part of the stack that `quire serve` runs."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == server.pid and part in words:
            return int(entry.name)
    raise AssertionError(f"{part} does not run")


def metric(server: Server, name: str) -> float:
    """Of the router's, its first sample."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=HANG_S) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def num_sequences(server: Server) -> float:
    """That the scheduler has, as it said a moment ago."""
    return metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting")
