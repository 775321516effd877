"""Copies between the host and the device that nothing waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of `array` on `device`, ordered on the current stream; the array may be changed at once.

    A plain `.to(device)` from pageable memory waits until the stream is idle. The pinned buffer is a fresh one for
    every call: torch's caching allocator hands it out again only after the copy has run, so none is overwritten under
    way.
    """
    return upload_into(array, torch.empty(array.shape, dtype=torch.from_numpy(array).dtype, device=device))


def upload_into(array: NDArray[Any], out: Tensor) -> Tensor:
    """As `upload`, to a tensor that is there already, of the array's shape and type. Returns `out`."""
    host = torch.from_numpy(array)
    if out.is_cuda:
        host = torch.empty(host.shape, dtype=host.dtype, pin_memory=True).copy_(host)
    return out.copy_(host, non_blocking=True)


class Download:
    """Tensors of one device on their way to the host, each into memory of its own, ordered on the current stream.

    The pinned memory is fresh for every download and belongs to whoever takes the results: nothing is overwritten that
    somebody may still read.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        """Of no tensors it is still the end of what was launched before."""
        self.event: torch.cuda.Event | None = None  # when all has arrived; None: it has arrived already
        if device.type != "cuda":
            self._host = list(tensors)
            return
        self._host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
        self.event = timing_event()
        self.event.record()

    def arrived(self) -> bool:
        """Whether `wait` would return at once."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[Tensor]:
        """The tensors, on the host."""
        if self.event is not None:
            self.event.synchronize()
        return self._host


def timing_event() -> torch.cuda.Event:
    """An event that knows its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
