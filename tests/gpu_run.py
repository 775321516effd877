"""Configures `pytest -m gpu` on a machine with a GPU: compiled kernels, parallel processes and longer timeouts.

The machine may lack pytest-xdist and pytest-timeout. Then the tests run one by one, and a test that exceeds its timeout
ends the run with a traceback of every thread.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

# A test also waits for the compilation of its kernels, while other tests keep the cores busy.
LIMIT_S = 300.0
# Each process has its own CUDA context, which takes half a gigabyte.
MOST_PROCESSES = 12
LEAST_CAPABILITY = (8, 0)  # as in services/worker/startup/gpu.py, which imports torch
_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
# A file descriptor of the terminal, because pytest redirects stderr to a file while a test runs.
_STDERR = pytest.StashKey[int]()


@cache
def has_gpu() -> bool:
    """Returns whether the driver's first GPU has at least LEAST_CAPABILITY. Asks the driver, as importing torch takes
    seconds."""
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
    """Sets TRITON_INTERPRET. Must be called before Triton is imported, because Triton reads it only then.

    `expression`: the argument of `-m`. `-m gpu` always compiles kernels on a machine with a GPU. Any other run keeps
    the value in the environment, if there is one.
    """
    if expression == "gpu" and has_gpu():
        os.environ["TRITON_INTERPRET"] = "0"
    elif "TRITON_INTERPRET" not in os.environ:
        os.environ["TRITON_INTERPRET"] = "0" if has_gpu() else "1"


def arrange(config: pytest.Config) -> None:
    """Sets options that the command line leaves open. Must be called before plugins read their options."""
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
    """Applies the timeout if pytest-timeout is missing. pytest-xdist then replaces the process and fails the test."""
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
