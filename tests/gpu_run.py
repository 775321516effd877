"""How `pytest -m gpu` runs on a machine with a GPU: with compiled kernels, side by side, and with longer limits.

The machine may lack pytest-xdist and pytest-timeout. Then the tests run one by one, and one that exceeds its limit ends
the run with a traceback of every thread.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

# Kernels are compiled when they come first, while other tests keep the cores busy.
LIMIT_S = 300.0
# Each has a CUDA context of its own, of half a gigabyte.
MOST_PROCESSES = 12
LEAST_CAPABILITY = (8, 0)  # as in services/worker/ops/gpu.py, which imports torch
_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
# A descriptor of the terminal: while a test runs, pytest has put a file in the place of stderr.
_STDERR = pytest.StashKey[int]()


@cache
def has_gpu() -> bool:
    """Whether the driver finds a first GPU of the least compute capability. Importing torch to ask it takes seconds."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return False
    return tuple(_attribute(driver, device, number) for number in _COMPUTE_CAPABILITY) >= LEAST_CAPABILITY


def _attribute(driver: ctypes.CDLL, device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int(0)
    return value.value if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 else 0


def choose_kernels(expression: str) -> None:
    """Sets TRITON_INTERPRET. To be called before Triton is imported, as a kernel is compiled or interpreted for good.

    `expression`: that of `-m`. `-m gpu` always compiles on a machine with a GPU. Any other run keeps a value that the
    environment has.
    """
    if expression == "gpu" and has_gpu():
        os.environ["TRITON_INTERPRET"] = "0"
    elif "TRITON_INTERPRET" not in os.environ:
        os.environ["TRITON_INTERPRET"] = "0" if has_gpu() else "1"


def arrange(config: pytest.Config) -> None:
    """To be called before any plugin looks at its options. What the command line says stands."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if config.option.markexpr != "gpu" or not has_gpu():
        return
    config.stash[_STDERR] = os.dup(2)  # pytest captures no output here yet
    if getattr(config.option, "timeout", 0.0) is None:
        config.option.timeout = LIMIT_S
    if not is_worker and getattr(config.option, "numprocesses", 0) is None:
        config.option.numprocesses = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
        config.option.dist = "worksteal"


@contextmanager
def limited(item: pytest.Item) -> Iterator[None]:
    """Where pytest-timeout is missing. With pytest-xdist the process is replaced and the test counts as failed."""
    config = item.config
    if config.option.markexpr != "gpu" or not has_gpu() or config.pluginmanager.hasplugin("timeout"):
        yield
        return
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0]) if marker else LIMIT_S
    faulthandler.dump_traceback_later(limit, exit=True, file=config.stash[_STDERR])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
