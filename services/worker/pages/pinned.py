"""Allocates large pinned host memory of exactly the requested size.

torch's own allocator rounds every pinned block up to the next power of two: 40 GiB of swap space would pin 64. This
module maps whole pages from the operating system and registers them with CUDA.
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

# cudaHostRegisterPortable pins the memory for every CUDA context. cudaHostRegisterMapped lets kernels access it by
# address; the kernel that swaps blocks needs this.
_FLAGS = 1 | 2


class _Pinned(mmap.mmap):
    """A memory mapping that is unpinned before it is unmapped. `__del__` unpins it, because Python calls `__del__`
    while the mapping still exists. Python calls callbacks of weak references only after the unmapping."""

    unpin: Callable[[], object] | None = None

    def __del__(self) -> None:
        # While Python exits, `unpin` is not called, because the operating system unpins the memory when the process
        # ends. The result of `unpin` is ignored, because on a lost device it fails and nothing can be done about that.
        if self.unpin is not None and not sys.is_finalizing():
            self.unpin()


def pinned_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns zeros in pinned memory, which is freed with the last tensor that uses it. Raises PinningError if the
    operating system does not allocate the memory, or if CUDA cannot pin it."""
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = _Pinned(-1, num_bytes)
    except (OSError, ValueError) as error:
        raise PinningError(f"the host cannot allocate {num_bytes} bytes for --swap-space: {error}") from error
    flat = torch.frombuffer(memory, dtype=torch.uint8)  # keeps `memory` alive
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
    """Clears CUDA's last error. torch reads and clears that error after each kernel launch, and reports the launched
    kernel as failed. So this function launches a kernel and ignores the report."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")
