"""Ends the programs of a product that is split over K: the last program of a tile adds the sums of all stretches.

If a product has too few tiles to fill the GPU, K is split into stretches (split-K, NVIDIA CUTLASS, "Efficient GEMM in
CUDA", section on parallelized reductions). A program writes the sums of its stretch to scratch memory and increments
the counter of its tile. The program that arrives last adds the sums of all stretches in ascending order, its own among
them, so a repeated product has the same bits whichever program is last. (The example of the CUDA C++ Programming Guide,
section on memory fence functions, ends in the same way.) It then resets the counter, which leaves the scratch memory
ready for the next product. Products share this memory, so they must run on one stream.

    y[m, n] = (Σ_s partial[s, m, n]) · row_scales[m] · out_scales[n] + bias[n]

The sums are added in their own type: float32, or int32, which is exact. Scales and bias are applied in float32, and y
is rounded once.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.tiles import MAX_PARTIALS, MAX_SPLIT_TILES, Cut, finish

# Partial sums that the last program of a tile has in flight, of all stretches together: 128 registers of 128 threads.
_IN_FLIGHT = 16384


@triton.constexpr_function
def _rows_at_a_time(splits: int, block_rows: int, block_outs: int) -> int:
    """Returns the number of rows of a tile, a power of two, whose stretches are joined at a time."""
    most = max(1, _IN_FLIGHT // (splits * block_outs))
    return min(block_rows, 1 << (most.bit_length() - 1))


@triton.jit
def finish_stretch(
    total,  # [BLOCK_OUTS, BLOCK_ROWS], float32 or int32
    row_scales,  # float32 [m], read if ROW_SCALES
    out_scales,  # float32 [N], read if OUT_SCALES
    bias,  # [N], read if BIAS
    y,  # [m, N]
    partials,  # of the sums' type, written and read if SPLITS > 1
    counters,  # int32 [tiles]: the number of programs that have arrived, if SPLITS > 1
    outs,  # int64 [BLOCK_OUTS]
    rows,  # int64 [BLOCK_ROWS]; 0 to BLOCK_ROWS - 1 if SPLITS > 1
    m,
    N: tl.constexpr,
    ROW_SCALES: tl.constexpr,
    OUT_SCALES: tl.constexpr,
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
):
    """Ends program (tile, stretch): stores y, or the sums of its stretch. The last program of a tile joins all
    stretches."""
    if SPLITS == 1:
        finish(total, row_scales, out_scales, bias, y, outs, rows, m, N, ROW_SCALES, OUT_SCALES, BIAS)
    else:
        size: tl.constexpr = BLOCK_OUTS * BLOCK_ROWS
        lanes = tl.arange(0, BLOCK_OUTS)[:, None] + tl.arange(0, BLOCK_ROWS)[None, :] * BLOCK_OUTS
        first = partials + tl.program_id(0) * (SPLITS * size) + lanes
        exists = (rows < m)[None, :] & (outs < N)[:, None]
        # ".cg" bypasses the L1 cache, which other SMs do not see.
        tl.store(first + tl.program_id(1) * size, total, mask=exists, cache_modifier=".cg")
        # One thread increments the counter. The barrier orders the stores of all threads before it.
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            piece: tl.constexpr = _rows_at_a_time(SPLITS, BLOCK_ROWS, BLOCK_OUTS)
            offsets = tl.arange(0, BLOCK_OUTS)[:, None] + tl.arange(0, piece)[None, :] * BLOCK_OUTS
            for start in range(0, tl.minimum(m, BLOCK_ROWS), piece):
                part_rows = (start + tl.arange(0, piece)).to(tl.int64)
                part = partials + tl.program_id(0) * (SPLITS * size) + start * BLOCK_OUTS + offsets
                inside = (part_rows < m)[None, :] & (outs < N)[:, None]
                joined = tl.load(part, mask=inside, other=0, cache_modifier=".cg")
                for split in tl.static_range(1, SPLITS):
                    joined += tl.load(part + split * size, mask=inside, other=0, cache_modifier=".cg")
                finish(joined, row_scales, out_scales, bias, y, outs, part_rows, m, N, ROW_SCALES, OUT_SCALES, BIAS)
            tl.store(counters + tl.program_id(0), 0)


@cache
def scratch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the device's scratch memory: float32 [MAX_PARTIALS], and int32 [MAX_SPLIT_TILES] of zeros. A recorded
    CUDA graph contains its address, so it is allocated once and never freed. The first call must not be made while a
    graph is recorded, because the memory would then belong to the graph."""
    with torch.inference_mode(False):  # else the memory could only be written in inference mode ever after
        return (
            torch.empty(MAX_PARTIALS, dtype=torch.float32, device=device),
            torch.zeros(MAX_SPLIT_TILES, dtype=torch.int32, device=device),
        )


def scratch_of(plan: Cut, y: Tensor, sums: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Returns partials and counters for a product that is cut by `plan`. An unsplit product has none: its kernel gets y
    in their place, which it does not touch. `sums`: type of the sums, float32 or int32."""
    if plan.splits == 1:
        return y, y
    partials, counters = scratch(y.device)
    return partials.view(sums), counters


def reserve(device: torch.device) -> None:
    """Allocates the device's scratch memory. Called when a layer is created, before any graph is recorded."""
    scratch(device)


def scratch_types(y: str, *, is_split: bool, sums: str = "fp32") -> dict[str, str]:
    """Returns the types of `partials` and `counters` in a `Variant`'s signature, if y has the type `y`."""
    if is_split:
        return {"partials": f"*{sums}", "counters": "*i32"}
    return dict.fromkeys(("partials", "counters"), f"*{y}")
