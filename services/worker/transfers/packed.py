"""Sends several small arrays to the device in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes; kernels are compiled for pointers with this alignment

Lengths = Mapping[str, tuple[torch.dtype, int]]


class PackedArrays:
    """One-dimensional arrays of fixed types and lengths, side by side in one device buffer. Their addresses never
    change, so launches recorded in a CUDA graph can read them.

    Each step fills a new host buffer. Steps are launched ahead, so the host can fill a step's buffer before the buffer
    of the previous step has been copied.
    """

    def __init__(self, lengths: Lengths, device: torch.device) -> None:
        self._slices: dict[str, tuple[torch.dtype, slice]] = {}
        end = 0
        for name, (dtype, length) in lengths.items():
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + length * dtype.itemsize
            self._slices[name] = (dtype, slice(start, end))
        self._bytes = torch.zeros(end, dtype=torch.uint8, device=device)

    def on_device(self, name: str) -> Tensor:
        """Returns array `name` on the device. The tensor is a view of the buffer: each `send` overwrites it."""
        return self._view(self._bytes, name)

    def blank(self) -> HostArrays:
        """Returns a new host buffer of zeros, for the caller to fill and `send`."""
        return HostArrays(self, torch.zeros(len(self._bytes), dtype=torch.uint8, pin_memory=self._bytes.is_cuda))

    def send(self, host: HostArrays) -> None:
        """Copies all arrays to the device, in order on the current stream. `host` must not be used afterwards. The
        caller need not keep `host` until the copy has run, because torch's allocator reuses the pinned memory only
        after that.
        """
        self._bytes.copy_(host.memory, non_blocking=True)

    def _view(self, memory: Tensor, name: str) -> Tensor:
        dtype, where = self._slices[name]
        return memory[where].view(dtype)


class HostArrays:
    """One step's arrays on the host, written through numpy."""

    def __init__(self, arrays: PackedArrays, memory: Tensor) -> None:
        self.memory = memory
        self._arrays = arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays._view(self.memory, name).numpy()

    def __setitem__(self, name: str, values: NDArray[np.generic]) -> None:
        """Writes `values` to the first elements of array `name`; its other elements stay zero."""
        self[name][: len(values)] = values
