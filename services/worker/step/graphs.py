"""Records the kernel launches of a step as a CUDA graph, to replay them in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]


def bucket_sizes(largest: int) -> list[int]:
    """Returns bucket sizes, ascending up to `largest`: 1, 2, 4, then multiples of 8 up to 256, then multiples of 32.
    So a step of up to 256 tokens computes at most 7 unused tokens, and a larger step at most an eighth more tokens than
    it has. Unused tokens cost little, because weights are read once per step for all tokens."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, largest + 1, 32)]
    return [*(size for size in sizes if size < largest), largest]


class Recorder(Protocol):
    def record(self, run: Callable[[], None]) -> Replay:
        """Runs `run` and returns a function that repeats its launches with the same arguments. The tensors that `run`
        uses must stay alive."""
        ...


class GraphRecorder:
    """Records CUDA graphs (CUDA C++ Programming Guide, section 6.2.8.7) that share one memory pool.

    Because of the shared pool, two graphs must never run at the same time, and each graph overwrites the results that
    an earlier one left in the pool. Therefore the recorded function copies its results out of the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, run: Callable[[], None]) -> Replay:
        """See `Recorder`."""
        # Run once before the recording, so that all kernels are compiled, loaded and tuned. None of this is possible
        # during a recording.
        run()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # "thread_local" permits CUDA calls of other threads during the recording. They do no harm, because no other
        # thread uses this stream.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        replay: Replay = graph.replay
        return replay
