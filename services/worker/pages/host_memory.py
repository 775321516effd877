"""Determines how much host memory there is, and whether swap space and other options fit into it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.worker.errors import ModelError

logger = logging.getLogger(__name__)

GIB = 2**30
# Default swap space of a GPU worker, as in vLLM. A CPU worker has none by default, because its KV blocks are in host
# memory already.
DEFAULT_GPU_BYTES = 4 * GIB
# The default swap space is at most this fraction of the available memory, so that several workers fit on a host.
_DEFAULT_FRACTION = 0.25
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


@dataclass(frozen=True, slots=True)
class Asked:
    """Memory that a command-line option asks for, in bytes."""

    flag: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SwapSpace:
    num_bytes: int
    option: float | None = None  # GiB given by --swap-space; None: the default

    @property
    def asked(self) -> tuple[Asked, ...]:
        return () if self.option is None else (Asked("--swap-space", self.num_bytes),)


def require(available: Available | None, *asked: Asked) -> None:
    """Raises ModelError if the options together ask for more memory than is available. Linux commits memory only when
    it is first written, so without this check, the kernel would kill a process later, without a message."""
    total = sum(one.num_bytes for one in asked)
    if available is None or total <= available.num_bytes:
        return
    sizes = " and ".join(f"{one.flag} takes {in_words(one.num_bytes)}" for one in asked)
    raise ModelError(
        f"{sizes}, but {available.where} has {in_words(available.num_bytes)} of memory available; "
        f"lower {'it' if len(asked) == 1 else 'them'}"
    )


def in_words(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes / 2**20:.1f} MiB"


def resolve_swap_space(option: float | None, device_type: str) -> SwapSpace:
    """Returns swap space of `option` GiB; None: the default size. Raises ModelError if `option` exceeds the available
    memory."""
    if option is not None:
        swap = SwapSpace(int(option * GIB), option)
        require(available_memory(), *swap.asked)
        return swap
    if device_type != "cuda":
        return SwapSpace(0)
    available = available_memory()
    if available is None or available.num_bytes * _DEFAULT_FRACTION >= DEFAULT_GPU_BYTES:
        return SwapSpace(DEFAULT_GPU_BYTES)
    swap = SwapSpace(int(available.num_bytes * _DEFAULT_FRACTION))
    logger.warning(
        "the swap space is %.1f GiB instead of %.1f: %s has %.1f GiB of memory available, and the default takes "
        "a quarter at most; --swap-space sets it",
        swap.num_bytes / GIB, DEFAULT_GPU_BYTES / GIB, available.where, available.num_bytes / GIB,
    )  # fmt: skip
    return swap


def require_memory(num_bytes: int, purpose: str) -> None:
    """Raises ModelError if the host or the container has less than `num_bytes` of memory in total. Call it before
    allocating the memory, because Linux kills a process that uses too much memory, without a message."""
    total = _total_memory()
    if total is not None and num_bytes > total.num_bytes:
        raise ModelError(
            f"{purpose} take {num_bytes / GIB:,.1f} GiB, but {total.where} has {total.num_bytes / GIB:,.1f} GiB "
            "of memory; take a smaller model, or quantize it with --quantization"
        )


def _total_memory() -> Available | None:
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
