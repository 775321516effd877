"""Large pinned host memory of exactly the size asked for.

torch's own allocator of pinned memory rounds every block up to the next power of two: 40 GiB of swap space would pin
64. Here the memory comes from the operating system in whole pages, and CUDA is told to pin it.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from services.worker.errors import PinningError

# cudaHostRegisterPortable pins the memory for every CUDA context. cudaHostRegisterMapped lets kernels read and write it
# by pointer, as the kernel that swaps blocks does.
_FLAGS = 1 | 2


class _Pinned(mmap.mmap):
    """Memory that is unpinned before it is unmapped: Python calls `__del__` while the mapping is still there, and
    callbacks of weak references only after it is gone."""

    unpin: Callable[[], object] | None = None

    def __del__(self) -> None:
        # The operating system unpins what an ending process holds. The result counts for nothing: where the device is
        # lost, unpinning fails and nothing can be done about it.
        if self.unpin is not None and not sys.is_finalizing():
            self.unpin()


def pinned_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros in pinned memory, which is unpinned and given back with the last tensor over it. Raises PinningError if the
    operating system or CUDA refuses it."""
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = _Pinned(-1, num_bytes)
    except (OSError, ValueError) as error:
        raise PinningError(f"the host has no {num_bytes} bytes for --swap-space: {error}") from error
    flat = torch.frombuffer(memory, dtype=torch.uint8)  # keeps `memory`
    address = flat.data_ptr()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    result = runtime.cudaHostRegister(address, num_bytes, _FLAGS)
    if result != runtime.cudaError.success:
        _forget_last_error()
        raise PinningError(
            f"CUDA cannot pin {num_bytes} bytes of host memory (error {int(result)}): lower --swap-space"
        )
    memory.unpin = lambda: runtime.cudaHostUnregister(address)
    return flat.view(dtype).view(tuple(shape))


def _forget_last_error() -> None:
    """CUDA keeps the refusal as its last error. torch would find it after the next kernel that it launches, and blame
    that kernel. So one is launched here whose error is dropped with it."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")
