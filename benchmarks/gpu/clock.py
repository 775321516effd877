"""Clocks that measure how long work takes on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Protocol

import torch

from services.worker.transfers import timing_event

Work = Callable[[], object]

# Several times the size of any GPU's L2 cache.
FLUSH_BYTES = 256 << 20


class Clock(Protocol):
    name: str

    def whole(self, work: Work) -> float:
        """Returns the seconds until the device is idle again, on all streams. Meant for work of many steps."""
        ...

    def each(self, work: Work, repeats: int) -> list[float]:
        """Returns the seconds of each of `repeats` runs, measured by events on the current stream. The L2 cache is
        flushed before each run."""
        ...

    def in_graph(self, works: Sequence[Work], repeats: int) -> float:
        """Returns the median seconds of one of `works`. All of them are recorded in one CUDA graph, which excludes the
        host's launch time. Together they should read several times the size of the L2 cache."""
        ...


class DeviceClock:
    name = "CUDA events"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def whole(self, work: Work) -> float:
        torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        work()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - start

    def each(self, work: Work, repeats: int) -> list[float]:
        work()
        events = [(timing_event(), timing_event()) for _ in range(repeats)]
        for start, end in events:
            self._flush.zero_()
            start.record()
            work()
            end.record()
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def in_graph(self, works: Sequence[Work], repeats: int) -> float:
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for work in works:  # compiles kernels and makes one-time allocations
                work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for work in works:
                work()
        graph.replay()
        events = [(timing_event(), timing_event()) for _ in range(repeats)]
        for start, end in events:
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize(self._device)
        milliseconds = [float(start.elapsed_time(end)) for start, end in events]
        return median(milliseconds) / 1e3 / len(works)


class DryClock:
    """Runs the work and always returns one millisecond. For dry runs, whose figures are meaningless."""

    name = "none: a dry run"

    def whole(self, work: Work) -> float:
        work()
        return 1e-3

    def each(self, work: Work, repeats: int) -> list[float]:
        work()
        return [1e-3] * repeats

    def in_graph(self, works: Sequence[Work], repeats: int) -> float:
        for work in works:
            work()
        return 1e-3
