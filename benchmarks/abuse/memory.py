"""Memory of processes and of all that they started, read from /proc."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

_INTERVAL_S = 0.1
_MB = 1e6


@contextlib.asynccontextmanager
async def watched(processes: Mapping[str, int]) -> AsyncIterator[dict[str, float]]:
    """By name, the most resident memory in MB between entering and leaving. `processes`: process ids. What children
    share with their parents counts for each of them."""
    peaks = dict.fromkeys(processes, 0.0)
    for pid in processes.values():
        _reset_peak(pid)

    async def sample() -> None:
        while True:
            for name, pid in processes.items():
                peaks[name] = max(peaks[name], sum(resident(one) for one in tree(pid)))
            await asyncio.sleep(_INTERVAL_S)

    sampling = asyncio.create_task(sample())
    try:
        yield peaks
    finally:
        sampling.cancel()
        # A peak between two samples.
        for name, pid in processes.items():
            peaks[name] = max(peaks[name], resident(pid, "VmHWM:"))


def _reset_peak(pid: int) -> None:
    """Sets the kernel's own peak, VmHWM, back to what is resident now."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident(pid: int, field: str = "VmRSS:") -> float:
    """MB, by a field of /proc/PID/status; 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / _MB for line in lines if line.startswith(field)), 0.0)


def tree(pid: int) -> list[int]:
    """The process and all that it and its children started, those that have ended and were not waited for included."""
    found = [pid]
    for one in found:
        for tasks in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, tasks.read_text().split())
    return found
