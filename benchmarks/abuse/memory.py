"""Memory of processes and their descendants, read from /proc."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

_INTERVAL_S = 0.1
_MB = 1e6


@contextlib.asynccontextmanager
async def watched(processes: Mapping[str, int]) -> AsyncIterator[dict[str, float]]:
    """Yields the peak resident memory of each process in MB by name, complete when the block ends.

    `processes`: process ids by name. Descendants are included. Memory that several of them share, such as that of a
    fork, counts once.
    """
    peaks = dict.fromkeys(processes, 0.0)
    for pid in processes.values():
        _reset_peak(pid)

    async def sample() -> None:
        while True:
            for name, pid in processes.items():
                peaks[name] = max(peaks[name], resident_together(tree(pid)))
            await asyncio.sleep(_INTERVAL_S)

    sampling = asyncio.create_task(sample())
    try:
        yield peaks
    finally:
        sampling.cancel()
        # VmHWM also shows a peak between two samples.
        for name, pid in processes.items():
            peaks[name] = max(peaks[name], resident(pid, "VmHWM:"))


def resident_together(pids: Sequence[int]) -> float:
    """Returns the resident memory of processes in MB. What they share counts once."""
    if len(pids) == 1:
        return resident(pids[0])
    # Pss counts a page that n processes share as 1/n of a page for each.
    return sum(_field(pid, "smaps_rollup", "Pss:") for pid in pids)


def _reset_peak(pid: int) -> None:
    """Resets the kernel's peak value, VmHWM, to the current resident memory."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident(pid: int, field: str = "VmRSS:") -> float:
    """Returns a field of /proc/PID/status in MB, or 0 if the process has ended."""
    return _field(pid, "status", field)


def _field(pid: int, file: str, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / _MB for line in lines if line.startswith(field)), 0.0)


def tree(pid: int) -> list[int]:
    """Returns the ids of the process and its descendants, zombies included."""
    found = [pid]
    for one in found:
        for tasks in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, tasks.read_text().split())
    return found
