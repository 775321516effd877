"""Asynchronous copies between host and device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copies `array` to `device`, in order on the current stream, and does not wait for the copy. The caller may change
    `array` as soon as this returns.

    A plain `.to(device)` from pageable memory would wait until the stream is idle. So the array is first copied to a
    pinned buffer. torch's caching allocator reuses that memory only after the copy to the device has run.
    """
    return upload_into(array, torch.empty(array.shape, dtype=torch.from_numpy(array).dtype, device=device))


def upload_into(array: NDArray[Any], out: Tensor) -> Tensor:
    """Like `upload`, but into an existing tensor of the array's shape and type. Returns `out`."""
    host = torch.from_numpy(array)
    if out.is_cuda:
        host = torch.empty(host.shape, dtype=host.dtype, pin_memory=True).copy_(host)
    return out.copy_(host, non_blocking=True)


class Download:
    """An asynchronous copy of device tensors to the host, in order on the current stream.

    Every download allocates pinned memory, and the tensors that `wait` returns own that memory. So no result is
    overwritten while it is still in use.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        """Starts the copy. Without tensors, `wait` only waits for the work launched before."""
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
        """Waits until the copy has finished, and returns the tensors on the host."""
        if self.event is not None:
            self.event.synchronize()
        return self._host


def timing_event() -> torch.cuda.Event:
    """Returns a CUDA event that can measure times."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
