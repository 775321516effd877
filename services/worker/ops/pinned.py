"""Large pinned host memory of exactly the size asked for.

torch's own allocator of pinned memory rounds every block up to the next power of two: 40 GiB of swap space would pin
64. Here the memory comes from the operating system in whole pages, and CUDA is told to pin it.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.errors import ModelError

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every CUDA context


def pinned_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros in pinned memory, which is unpinned and given back with the last tensor over it. Raises ModelError if the
    operating system or CUDA refuses it."""
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, num_bytes)
    except (OSError, ValueError) as error:
        raise ModelError(f"the host has no {num_bytes} bytes for --swap-space: {error}") from error
    # The tensor keeps the memory, which is unpinned before it is unmapped.
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    address = flat.data_ptr()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    result = runtime.cudaHostRegister(address, num_bytes, _PORTABLE)
    if result != runtime.cudaError.success:
        raise ModelError(f"CUDA cannot pin {num_bytes} bytes of host memory (error {int(result)}): lower --swap-space")
    # An error counts for nothing here: at the end of a process whose device is lost, there is nothing to unpin.
    unpin = weakref.finalize(memory, runtime.cudaHostUnregister, address)
    unpin.atexit = False  # the operating system unpins what the process holds
    return flat.view(dtype).view(tuple(shape))
