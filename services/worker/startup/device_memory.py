"""Measures how much of a GPU's memory is left for the KV cache, by running the largest possible step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch

from services.worker.errors import ModelError
from services.worker.pages import LESS_MEMORY, Asked, require
from services.worker.startup.warm_up import run_largest_step
from services.worker.step import ModelRunner, Recorder
from shared.host_memory import GIB, Available, available_memory


class DeviceMemory(Protocol):
    """Memory of a device, in bytes."""

    def total(self) -> int: ...

    def used(self) -> int:
        """Releases torch's cached memory, then returns the memory that all processes use."""
        ...

    def peak(self, run: Callable[[], None]) -> int:
        """Returns the most memory that tensors allocated by `run` took at one time."""
        ...


class CudaMemory:
    """See `DeviceMemory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def used(self) -> int:
        """See `DeviceMemory`."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def available(self) -> Available:
        return Available(self.total() - self.used(), str(self._device))

    def peak(self, run: Callable[[], None]) -> int:
        """See `DeviceMemory`."""
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory that serving needs in addition to the KV cache, in bytes."""

    weights: int  # includes memory used by the process itself and by other processes on the device
    step: int  # inputs, sampler, and the activations of the largest step
    graphs: int  # an estimate

    def left_of(self, total: int, utilization: float) -> int:
        """Returns the bytes that the needs leave of `utilization` · `total`. Negative if the needs are greater."""
        return int(total * utilization) - self.weights - self.step - self.graphs

    def __str__(self) -> str:
        return (
            f"{self.weights / GIB:.2f} GiB of weights, {self.step / GIB:.2f} GiB for the largest step, "
            f"{self.graphs / GIB:.2f} GiB for graphs"
        )


def measure_needs(make_runner: Callable[[], ModelRunner], memory: DeviceMemory, recorder: Recorder | None) -> Needs:
    """Measures the memory that serving needs. Runs the largest step with a runner that `make_runner` builds with few
    pages, and frees the runner afterwards. With a `recorder`, records the two largest graphs and estimates the memory
    of all graphs: the first graph allocates the pool that all graphs share, and every further graph is assumed to take
    as much as the second."""
    made: list[ModelRunner] = []

    def run() -> None:
        made.append(make_runner())
        run_largest_step(made[0])

    step = memory.peak(run)
    buckets = made[0].graph_buckets if recorder is not None else []
    used = [memory.used()]
    for bucket in buckets[:-3:-1]:
        assert recorder is not None
        made[0].record_graphs(recorder, [bucket])
        used.append(memory.used())
    grown = [max(0, after - before) for before, after in pairwise(used)]
    graphs = sum(grown[:1]) + sum(grown[1:]) * (len(buckets) - 1)
    made.clear()
    return Needs(memory.used(), step, graphs)


def require_asked(device: torch.device, kv_cache: Sequence[Asked], swap: Sequence[Asked]) -> None:
    """Raises ModelError if the options ask for more memory than device and host have available now."""
    if device.type == "cuda":
        require(CudaMemory(device).available(), *kv_cache)
        require(available_memory(), *swap)
    else:
        # The KV cache of a CPU lies in host memory, too, so host memory must hold it and the swap space together.
        require(available_memory(), *kv_cache, *swap)


@contextmanager
def out_of_memory_explained(doing: str, device: torch.device, change: str = LESS_MEMORY) -> Iterator[None]:
    """Turns an out-of-memory error into a ModelError. Its text says what the memory was for (`doing`) and which options
    to change (`change`)."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(f"{device} has too little memory for {doing}: {change}") from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # torch has no error class for this on a CPU
            raise
        raise ModelError(f"{device} has too little memory for {doing}: {change}") from error
