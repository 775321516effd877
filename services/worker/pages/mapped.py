"""Allocates large zeroed tensors in host memory without writing them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor


def mapped_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns zeros in memory that the operating system commits page by page, when a page is first written.
    `torch.zeros` writes all of its memory at once, which takes seconds for some gigabytes. Raises MemoryError."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"the host cannot allocate {num_bytes} bytes: {error}") from error
    # The tensor keeps `memory` alive.
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(tuple(shape))
