"""Sends several small arrays to the device in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes, as kernels expect of their arguments

Lengths = Mapping[str, tuple[torch.dtype, int]]


class PackedArrays:
    """One-dimensional arrays of fixed types and lengths. Their addresses on the device never change, so recorded
    launches can read them.

    Each step fills a new host buffer. Plans are launched ahead, so the host can fill the next buffer before the copy of
    the previous buffer has run.
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
        """Returns the array on the device, as the latest copy on the stream leaves it."""
        return self._view(self._bytes, name)

    def blank(self) -> HostArrays:
        """Returns a host buffer of zeros, to be filled and sent."""
        return HostArrays(self, torch.zeros(len(self._bytes), dtype=torch.uint8, pin_memory=self._bytes.is_cuda))

    def send(self, host: HostArrays) -> None:
        """Copies all arrays, in order on the current stream. `host` must not be used afterwards.

        torch's allocator reuses the pinned memory only after the copy has run.
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
        """Writes the array's first elements; the rest stays zero."""
        self[name][: len(values)] = values
