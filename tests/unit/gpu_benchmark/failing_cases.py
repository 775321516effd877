"""Cases that fail in every way that a GPU brings about, for the test of what runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch

from benchmarks.gpu import child
from benchmarks.gpu.cases import Case, Setting, SkippedError
from benchmarks.gpu.figures import Figure


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    return {
        "one by one": _one_by_one,
        "between": _between,
        "does not load": _does_not_load,
        "long": _long,
        "behind": _behind,
    }


def _one_by_one() -> Iterator[Case]:
    yield Case("brings an error bound", lambda: 1e-3)
    yield Case("raises", _raise)
    yield Case("brings figures", lambda: (Figure(f"figure {index}", float(index), "ms") for index in range(3)))
    yield Case("hangs", lambda: time.sleep(600))
    yield Case("runs after a hang", lambda: None)
    yield Case("kills its process", lambda: os._exit(9))
    yield Case("leaves the context dead", _leave_a_dead_context)
    yield Case("runs in a fresh context", lambda: None)


def _between() -> Iterator[Case]:
    yield Case("passes", _kill_after_the_case)
    yield Case("lacks a library", _skip)
    yield Case("comes last", lambda: None)


def _behind() -> Iterator[Case]:
    yield Case("never begins", lambda: None)


def _skip() -> None:
    raise SkippedError("there is no library")


def _kill_after_the_case() -> None:
    """The process ends when the case has been reported, before the next one begins."""
    child.free_unused_memory = lambda: os._exit(7)


def _does_not_load() -> Iterable[Case]:
    raise ImportError("there is no such kernel")


def _long() -> Iterator[Case]:
    yield Case("brings a figure and goes on", _figure_and_wait)
    yield Case("comes after it", lambda: None)


def _raise() -> None:
    raise ValueError("a kernel is wrong")


def _leave_a_dead_context() -> None:
    """As a kernel that reads past the end of its memory: every later call of CUDA's fails, in this process alone."""

    def synchronize(device: object = None) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.is_available = lambda: True
    torch.cuda.synchronize = synchronize
    synchronize()


def _figure_and_wait() -> Iterator[Figure]:
    yield Figure("measured before the end", 1.0, "ms")
    if "QUIRE_TEST_MARK" in os.environ:
        Path(os.environ["QUIRE_TEST_MARK"]).touch()
    time.sleep(600)
