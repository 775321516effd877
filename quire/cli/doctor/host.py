"""Checks of the host: cores, memory, limits, and the directories that Quire writes to."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

from quire.cli.doctor.finding import Finding, ok, problem, unused, warning
from quire.cli.stack import stack_directory
from shared.config import ConfigError
from shared.host_cores import physical_cores
from shared.host_memory import GIB, available_memory, in_words

# What a stack with the bundled model takes on a CPU (docs/operations.md, Memory).
LEAST_MEMORY = GIB
# File descriptors that the stack's parts have open without a client.
OWN_DESCRIPTORS = 100
# Threads and processes of a stack with one worker on one host.
LEAST_PROCESSES = 256
# A small model and the kernels that Triton compiles.
LEAST_DISK = 2 * GIB


def check_cores() -> Finding:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = physical_cores()
    words = f"{cores} physical core{'s' * (cores != 1)} of {allowed} CPUs that the system shows"
    if cores == 1:
        return warning("cores", words, "give Quire at least 2 cores: on one, its parts wait for each other")
    return ok("cores", words)


def check_memory() -> Finding:
    available = available_memory()
    if available is None:
        return unused("memory", "the system does not say how much memory is available")
    words = f"{in_words(available.num_bytes)} available on {available.where}"
    if available.num_bytes < LEAST_MEMORY:
        return problem("memory", f"only {words}", "stop other programs, or raise the container's limit to 2 GiB")
    return ok("memory", words)


def check_shared_memory(directory: Path = Path("/dev/shm")) -> Finding:
    try:
        size = shutil.disk_usage(directory).total
    except OSError:
        return unused("shm", f"there is no {directory}, and Quire does not need it")
    return unused("shm", f"{in_words(size)} in {directory}; Quire runs each model on one GPU and does not use it")


def check_descriptors(max_connections: int) -> Finding:
    """`max_connections`: the limit of the gateway."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        shown = "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return ok("files", f"{shown} files may be open: enough for {max_connections:,} clients")
    may = hard == resource.RLIM_INFINITY or hard >= needed
    remedy = f"ulimit -n {needed}" if may else f"raise the hard limit to {needed} (limits.conf, LimitNOFILE, --ulimit)"
    return warning(
        "files",
        f"{soft:,} files may be open: enough for about {max(0, soft - OWN_DESCRIPTORS):,} clients; more are refused",
        f"{remedy}; or --max-connections {max(1, soft - OWN_DESCRIPTORS)}",
    )


def check_processes(cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    limits = [("ulimit -u", str(resource.getrlimit(resource.RLIMIT_NPROC)[0]))]
    for name in ("pids.max", "pids/pids.max"):
        try:
            limits.append((f"the container's {name}", (cgroup / name).read_text().strip()))
        except OSError:
            continue
    numbers = [(int(limit), name) for name, limit in limits if limit.isdigit()]
    limit, name = min(numbers, default=(None, ""))
    if limit is None:
        return ok("threads", "no limit of threads and processes")
    if limit < LEAST_PROCESSES:
        what = f"{name} allows {limit:,} threads and processes"
        return problem("threads", what, f"raise it to at least {LEAST_PROCESSES} (--pids-limit of docker run)")
    return ok("threads", f"{name} allows {limit:,} threads and processes")


def check_runtime_directory() -> Finding:
    """Creates the private directory for the sockets of `quire serve`, and removes it."""
    try:
        with stack_directory() as directory:
            return ok("sockets", f"in {directory.parent}")
    except ConfigError as error:
        return problem("sockets", str(error), "set XDG_RUNTIME_DIR to a directory with a short path")
    except OSError as error:
        return problem("sockets", f"no directory for them can be made: {error}", "mount a tmpfs at /tmp")


def check_downloads(directory: Path) -> Finding:
    """`directory`: where models from the hub go."""
    existing = next(one for one in (directory, *directory.parents) if one.exists())
    if not os.access(existing, os.W_OK):
        what = f"{directory} cannot be written, so no model can be downloaded"
        return warning("disk", what, "set HF_HOME or --download-dir to a directory that can")
    free = shutil.disk_usage(existing).free
    words = f"{in_words(free)} free for models in {directory}"
    if free < LEAST_DISK:
        return warning("disk", f"only {words}", "free some, or set HF_HOME or --download-dir to another disk")
    return ok("disk", words)
