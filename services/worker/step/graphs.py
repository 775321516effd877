"""Records the kernel launches of a step as a CUDA graph, to replay them in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]


def bucket_sizes(largest: int) -> list[int]:
    """Returns bucket sizes, ascending up to `largest`: 1, 2, 4, then every 8 up to 256, then every 32. So a step
    computes at most 7 unused tokens, or an eighth of its number of tokens. Unused tokens do not add to the time of
    reading the weights."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, largest + 1, 32)]
    return [*(size for size in sizes if size < largest), largest]


class Recorder(Protocol):
    def record(self, run: Callable[[], None]) -> Replay:
        """Runs `run` and returns a function that repeats its launches with the same arguments. The tensors that `run`
        uses must stay alive."""
        ...


class GraphRecorder:
    """Records CUDA graphs (CUDA C++ Programming Guide, section 6.2.8.7) that share one memory pool.

    Because of the shared pool only one graph may run at a time, and a later graph overwrites the results of an earlier
    one. Each graph therefore copies its results out of the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, run: Callable[[], None]) -> Replay:
        """See `Recorder`."""
        # A first run outside the recording: compiling, loading and tuning kernels cannot be recorded.
        run()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # "thread_local" lets other threads of this process call CUDA meanwhile: none of them uses this stream.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        replay: Replay = graph.replay
        return replay
