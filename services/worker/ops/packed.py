"""Several arrays that go to the device together: one copy, whatever their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes, as kernels expect of what they are given

Lengths = Mapping[str, tuple[torch.dtype, int]]


class PackedArrays:
    """One-dimensional arrays of fixed types and lengths, at one place on the device from start to end, so that recorded
    launches find them there.

    The host's side is another one for every step: it may fill the next before the copy of the last has run, as plans
    are launched ahead.
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
        """The array, as the latest copy before in the stream left it."""
        return self._view(self._bytes, name)

    def blank(self) -> HostArrays:
        """All zeros, on the host, to be filled and sent."""
        return HostArrays(self, torch.zeros(len(self._bytes), dtype=torch.uint8, pin_memory=self._bytes.is_cuda))

    def send(self, host: HostArrays) -> None:
        """Copies all arrays, ordered on the current stream; `host` is not to be used any more.

        Torch's allocator of pinned memory gives it to nobody before the copy has run.
        """
        self._bytes.copy_(host.memory, non_blocking=True)

    def _view(self, memory: Tensor, name: str) -> Tensor:
        dtype, where = self._slices[name]
        return memory[where].view(dtype)


class HostArrays:
    """One step's arrays, to be written through numpy."""

    def __init__(self, arrays: PackedArrays, memory: Tensor) -> None:
        self.memory = memory
        self._arrays = arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays._view(self.memory, name).numpy()

    def __setitem__(self, name: str, values: NDArray[np.generic]) -> None:
        """Writes the array's first elements; the others stay zeros."""
        self[name][: len(values)] = values
