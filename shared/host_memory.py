"""Determines how much memory this host or this container has, in total and available."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
_HOST, _CONTAINER = "this host", "this container"
_MEMINFO = Path("/proc/meminfo")
# A container sees its own control group under this path.
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Files that hold a container's memory limit and usage, in one version of Linux control groups (v1 or v2)."""

    limit: str
    used: str
    statistics: str
    file_cache: Sequence[str]  # fields of `statistics`, in bytes


_VERSIONS = (
    ControlGroup("memory.max", "memory.current", "memory.stat", ("inactive_file", "active_file")),
    ControlGroup(
        "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
        ("total_inactive_file", "total_active_file"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Available:
    num_bytes: int
    where: str  # "this host", "this container", or a device


def in_words(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes / 2**20:.1f} MiB"


def total_memory() -> Available | None:
    """Returns RAM plus the system's swap, or the container's memory limit if that is less; None if both are unknown."""
    bounds = []
    try:
        lines = _MEMINFO.read_text().splitlines()
        kibibytes = {words[0]: int(words[1]) for line in lines if len(words := line.split()) > 1}
    except (OSError, ValueError):
        kibibytes = {}
    if "MemTotal:" in kibibytes:
        bounds.append(Available((kibibytes["MemTotal:"] + kibibytes.get("SwapTotal:", 0)) * 1024, _HOST))
    for version in _VERSIONS:
        try:
            limit = (_CGROUP / version.limit).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():  # "max" means no limit
            bounds.append(Available(int(limit), _CONTAINER))
    return min(bounds, key=lambda bound: bound.num_bytes, default=None)


def available_memory() -> Available | None:
    """Returns the memory that a process can use without swapping, within its container's limit; None if unknown."""
    bounds = [bound for bound in (_of_host(), *map(_of_container, _VERSIONS)) if bound is not None]
    return min(bounds, key=lambda bound: bound.num_bytes, default=None)


def _of_host() -> Available | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((Available(int(words[1]) * 1024, _HOST) for words in found), None)


def _of_container(version: ControlGroup) -> Available | None:
    """Returns the control group's limit minus the memory it uses; None if it has no limit. Cached files do not count
    as used here, although the kernel counts them, because the kernel drops them when a process needs memory."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in (version.limit, version.used))
        statistics = (_CGROUP / version.statistics).read_text().splitlines()
    except OSError:
        return None
    if not (limit.isdigit() and used.isdigit()):  # "max" means no limit
        return None
    fields = dict(line.split(maxsplit=1) for line in statistics if " " in line)
    cached = sum(int(fields.get(name, 0)) for name in version.file_cache)
    return Available(max(0, int(limit) - max(0, int(used) - cached)), _CONTAINER)
