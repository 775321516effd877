"""How much of the host's memory may hold KV blocks."""

from __future__ import annotations

from pathlib import Path

from services.worker.errors import ModelError

GIB = 2**30
# vLLM's default. On a CPU, KV blocks and swap space would lie in the same memory.
DEFAULT_GPU_BYTES = 4 * GIB
# The default takes at most this part of the memory that is available, so that several workers fit on a host.
_DEFAULT_FRACTION = 0.25
_MEMINFO = Path("/proc/meminfo")
# Control group v2, as containers see their own.
_CGROUP = Path("/sys/fs/cgroup")


def swap_bytes(option: float | None, device_type: str) -> int:
    """Bytes of swap space, of `option` GiB or by default. Raises ModelError for more than the host has available."""
    available = available_bytes()
    if option is None:
        wanted = DEFAULT_GPU_BYTES if device_type == "cuda" else 0
        return wanted if available is None else min(wanted, int(available * _DEFAULT_FRACTION))
    wanted = int(option * GIB)
    if available is not None and wanted > available:
        raise ModelError(
            f"--swap-space is {option:g} GiB, but this host has {available / GIB:.1f} GiB of memory available; lower it"
        )
    return wanted


def available_bytes() -> int | None:
    """Memory that a process can take without swapping, within its container's limit; None where it is not known."""
    bounds = [bound for bound in (_of_host(), _of_container()) if bound is not None]
    return min(bounds, default=None)


def _of_host() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) * 1024 for words in found), None)


def _of_container() -> int | None:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else None
