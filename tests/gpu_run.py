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


@cache
def has_gpu() -> bool:
    """By the driver's word, as importing torch would take seconds."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def choose_kernels() -> None:
    """To be called before Triton is imported, as kernels are compiled or interpreted for good."""
    if has_gpu():
        os.environ["TRITON_INTERPRET"] = "0"
    else:
        os.environ.setdefault("TRITON_INTERPRET", "1")


def arrange(config: pytest.Config) -> None:
    """To be called before any plugin looks at its options. What the command line says stands."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if config.option.markexpr != "gpu" or not has_gpu():
        return
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
    faulthandler.dump_traceback_later(float(marker.args[0]) if marker else LIMIT_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
