"""Recording what a step launches, to launch it again at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]


def bucket_sizes(largest: int) -> list[int]:
    """Ascending, `largest` the last: 1, 2, 4, then every 8 up to 256, then every 32. So a step computes at most 7
    tokens for nobody, or an eighth, in a layer whose time is that of reading the weights."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, largest + 1, 32)]
    return [*(size for size in sizes if size < largest), largest]


class Recorder(Protocol):
    def record(self, run: Callable[[], None]) -> Replay:
        """What repeats the launches of `run`: with the same tensors, which must stay, and the same numbers. `run` is
        run."""
        ...


class GraphRecorder:
    """CUDA graphs (CUDA C++ Programming Guide, section 6.2.8.7) of one memory pool.

    Graphs of one pool share what they need while they run, so only one may run at a time, and none beside another's
    results in that memory: what is to outlast a graph is copied out of it by the graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, run: Callable[[], None]) -> Replay:
        """See `Recorder`."""
        # What is compiled, loaded or tuned when a shape comes for the first time cannot be recorded.
        run()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may go on: none of them uses the stream that is recorded.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        replay: Replay = graph.replay
        return replay
