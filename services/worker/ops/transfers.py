"""Asynchronous copies between host and device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copies `array` to `device`, in order on the current stream. The caller may change the array at once.

    A plain `.to(device)` from pageable memory would wait until the stream is idle. Every call uses a new pinned buffer:
    torch's caching allocator reuses it only after the copy has run, so no copy under way is overwritten.
    """
    return upload_into(array, torch.empty(array.shape, dtype=torch.from_numpy(array).dtype, device=device))


def upload_into(array: NDArray[Any], out: Tensor) -> Tensor:
    """Like `upload`, but into an existing tensor of the array's shape and type. Returns `out`."""
    host = torch.from_numpy(array)
    if out.is_cuda:
        host = torch.empty(host.shape, dtype=host.dtype, pin_memory=True).copy_(host)
    return out.copy_(host, non_blocking=True)


class Download:
    """A copy of device tensors to the host that is under way, in order on the current stream.

    Every download uses new pinned memory, which then belongs to the receiver of the results. So no result is
    overwritten while somebody can still read it.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        """Starts the copy. With no tensors, only marks the end of the work launched before."""
        self.event: torch.cuda.Event | None = None  # recorded after the copies; None: the copies are done
        if device.type != "cuda":
            self._host = list(tensors)
            return
        self._host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
        self.event = timing_event()
        self.event.record()

    def arrived(self) -> bool:
        """Returns whether `wait` would return at once."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[Tensor]:
        """Waits, and returns the tensors on the host."""
        if self.event is not None:
            self.event.synchronize()
        return self._host


def timing_event() -> torch.cuda.Event:
    """Returns a CUDA event that records its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
