"""A kernel that only reads memory. Its rate is the upper bound for memory-bound steps."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # words of 4 bytes: 16 bytes for each of 256 threads, eight times
NUM_WARPS = 8
PROGRAMS_PER_PROCESSOR = 8


@triton.jit
def read_kernel(source, results, num_tiles, BLOCK: tl.constexpr):
    """Stores, for each program, the maximum over the XOR of its tiles, so that the compiler cannot remove a load."""
    total = tl.zeros([BLOCK], tl.int32)
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    at = source + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        total ^= tl.load(at)
        at += stride
    tl.store(results + tl.program_id(0), tl.max(total, 0))


def read(source: Tensor, num_processors: int) -> Tensor:
    """Reads all of `source`, int32 [n] with n a multiple of BLOCK. Returns int32 [num_programs], which depend on every
    word."""
    num_programs = num_processors * PROGRAMS_PER_PROCESSOR
    results = torch.empty(num_programs, dtype=torch.int32, device=source.device)
    read_kernel[(num_programs,)](source, results, source.numel() // BLOCK, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return results
