"""Determines how many cores this host or this container has."""

from __future__ import annotations

import os
from pathlib import Path


def physical_cores() -> int:
    """Returns the number of physical cores that this process can use: those of its CPU affinity, but no more than its
    container's CPU quota, and at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = {_siblings(cpu) for cpu in allowed}
    quota = _quota(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, min(len(siblings), quota or len(siblings)))


def _siblings(cpu: int) -> str:
    """Returns an identifier of the physical core of a logical CPU. If the system does not report the core, returns
    the CPU's own number."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return f"{cpu}"


def _quota(cpu_max: Path) -> int | None:
    """Returns the CPU quota in a cgroup v2 file `cpu.max`, as a number of CPUs, rounded down but at least 1. Returns
    None if there is no quota or no such file."""
    try:
        quota, period = cpu_max.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
