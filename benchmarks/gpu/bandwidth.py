"""Reading memory and nothing else: what a step that is bound by memory cannot beat."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # words of 4 bytes: 16 bytes for each of 256 threads, eight times
NUM_WARPS = 8
PROGRAMS_PER_PROCESSOR = 8


@triton.jit
def read_kernel(source, results, num_tiles, BLOCK: tl.constexpr):  # noqa: N803
    """Of each program the greatest lane of its tiles' exclusive or, so that no load can be left out."""
    total = tl.zeros([BLOCK], tl.int32)
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    at = source + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        total ^= tl.load(at)
        at += stride
    tl.store(results + tl.program_id(0), tl.max(total, 0))


def read(source: Tensor, num_processors: int) -> Tensor:
    """int32 [n], n a multiple of BLOCK -> int32 [programs], which depend on every word."""
    num_programs = num_processors * PROGRAMS_PER_PROCESSOR
    results = torch.empty(num_programs, dtype=torch.int32, device=source.device)
    read_kernel[(num_programs,)](source, results, source.numel() // BLOCK, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return results
