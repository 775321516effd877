"""Host arrays to the device without waiting for it."""

from __future__ import annotations

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
