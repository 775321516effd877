"""Faults that the kernel causes: a process that may take no more memory, and a disk that is full.

Both need root. Without it, or on a kernel without these files, they raise UnsupportedError.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup/memory")
# So little that the next memory that the process asks for is refused, and the kernel kills the process.
_LIMIT_BYTES = 64 * 1024
_DISK_BYTES = 16 * 1024 * 1024


class UnsupportedError(Exception):
    """This machine cannot cause the fault. The message says why."""


@dataclass(slots=True)
class MemoryLimit:
    """`has_killed`: whether the kernel has killed the process, once the limit has ended. The process may still run for
    a moment."""

    has_killed: bool = False


@contextlib.contextmanager
def no_more_memory(pid: int) -> Iterator[MemoryLimit]:
    """Lets a process take no more memory than it has, until the block ends (cgroup v1). Raises UnsupportedError."""
    group, limit = _CGROUPS / f"quire-chaos-{os.getpid()}-{pid}", MemoryLimit()
    try:
        group.mkdir()
    except OSError as error:
        raise UnsupportedError(f"no memory cgroup can be created: {error.strerror}") from error
    try:
        try:
            (group / "memory.limit_in_bytes").write_text(str(_LIMIT_BYTES))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise UnsupportedError(f"the memory cgroup cannot be used: {error.strerror}") from error
        yield limit
    finally:
        # A cgroup with processes cannot be removed.
        for one in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (_CGROUPS / "cgroup.procs").write_text(one)
        limit.has_killed = "oom_kill 0" not in (group / "memory.oom_control").read_text()
        with contextlib.suppress(OSError):
            group.rmdir()


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """Makes a directory and mounts a small file system on it until the block ends. Yields whether it is mounted."""
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=700", "quire-chaos", str(directory)]
    is_mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            # Also if a process still has a file open there.
            subprocess.run(["umount", "--lazy", str(directory)], capture_output=True, check=False)


@contextlib.contextmanager
def filled(directory: Path) -> Iterator[None]:
    """Fills the file system of a directory until the block ends."""
    filler = directory / "filler"
    try:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filler.unlink(missing_ok=True)
