"""Parts that all matrix products y = x Wᵀ share: how a product is cut into programs, and how a program ends.

A program computes a tile [BLOCK_OUTS, BLOCK_ROWS] of yᵀ = W xᵀ, with the weights as the left operand. Hopper's tensor
cores (wgmma) need at least 64 rows of the left operand but only 8 columns of the right one. Rows of x are columns of
xᵀ, so a few rows of x need no padding to 64. Besides, only the left operand can come from registers, where weights are
dequantized.

A product with few rows often has too few tiles to keep all SMs of the GPU busy. Then K is split (split-K): each program
adds up one stretch of K, and the last one adds the stretches in ascending order (`split_k.py`). Where K is split
depends only on the weight's shape and on the tiles, which `TileTable.of` chooses by the number of rows. No sum is added
atomically, so a repeated product has the same bits. In batch-invariant mode K is not split, and the steps of K are the
same for every number of rows.

Indices of rows and outputs past the end are clamped to the last row or output, which is computed again but not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

# Programs that compute the same outputs for different rows of x read the same tile of W. Up to this many of them have
# consecutive program ids. They therefore run at the same time, and their tile of W is read from memory only once.
GROUP_ROWS = 8
# Default of `Tiles.programs`. It is two programs per SM of an H200, which has 132 SMs. If each of these programs has at
# least 16 KB of loads in flight, they saturate 4.8 TB/s at a latency of 0.8 µs.
PROGRAMS = 264
_MIN_STEPS = 4  # minimum number of steps of BLOCK_K in a stretch, so that loads can run ahead
LEAST_K = 16  # k of the shortest tensor-core product
# Scratch memory of a device for the sums of stretches (12 MiB), and counters of tiles. A product that would need more
# is split into fewer stretches.
MAX_PARTIALS = 3 << 20
MAX_SPLIT_TILES = 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    rows: int
    outs: int
    k: int
    num_warps: int
    num_stages: int
    # Most programs of a product that is split. It should not exceed the number of programs that the GPU runs at once:
    # the programs above this number would start only when others have ended.
    programs: int = PROGRAMS


@dataclass(frozen=True, slots=True)
class TileTable:
    """Tile sizes by the number of rows, in ascending order. A product uses the first class whose tile holds all its
    rows, or else the last class. All classes have the same k, the number of columns of x that one step of the kernel's
    loop takes. For a repacked weight, steps can be shorter, so that they fit the weight's groups or divide K."""

    classes: tuple[Tiles, ...]

    def of(self, num_rows: int) -> Tiles:
        return next((tiles for tiles in self.classes if num_rows <= tiles.rows), self.classes[-1])

    @property
    def k(self) -> int:
        return self.classes[0].k

    def launches(self, k: int, short_k: int) -> Iterator[tuple[str, Tiles, int, bool]]:
        """Yields the kinds of launches to compile ahead of time: a name, tiles, a number of columns, and whether the
        product is split. `short_k`: columns that are not a multiple of a step."""
        for tiles in self.classes:
            yield f"{tiles.rows} rows", tiles, k, True
        yield "many rows", self.classes[-1], k, False
        yield "many rows, short", self.classes[-1], short_k, False


@dataclass(frozen=True, slots=True)
class Cut:
    """One launch: a grid of `tiles` × `splits` programs."""

    tiles: int
    splits: int
    steps: int  # steps of K in each split; the last split can have fewer


def cut(tiles: Tiles, num_rows: int, n: int, num_steps: int, may_split: bool) -> Cut:
    """Cuts a product into programs. `num_steps`: number of steps in K. Splits K only if one row tile holds all rows, so
    that the split is the same for all numbers of rows that use these tiles."""
    row_tiles = triton.cdiv(num_rows, tiles.rows)
    programs = row_tiles * triton.cdiv(n, tiles.outs)
    splits = 1
    if may_split and row_tiles == 1:
        most = MAX_PARTIALS // (programs * tiles.outs * tiles.rows) if programs <= MAX_SPLIT_TILES else 1
        splits = min(tiles.programs // programs, num_steps // _MIN_STEPS, most)
    steps = triton.cdiv(num_steps, max(1, splits))
    return Cut(programs, triton.cdiv(num_steps, steps), steps)


@triton.jit
def tile_of_program(m, N: tl.constexpr, BLOCK_OUTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr):
    """Returns two int64 tensors: the indices of the outputs, [BLOCK_OUTS], and of the rows, [BLOCK_ROWS], that this
    program computes."""
    row_tiles = tl.cdiv(m, BLOCK_ROWS)
    out_tiles: tl.constexpr = (N + BLOCK_OUTS - 1) // BLOCK_OUTS
    group = tl.program_id(0) // (GROUP_ROWS * out_tiles)
    height = tl.minimum(row_tiles - group * GROUP_ROWS, GROUP_ROWS)
    within = tl.program_id(0) % (GROUP_ROWS * out_tiles)
    rows = (group * GROUP_ROWS + within % height) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    outs = (within // height) * BLOCK_OUTS + tl.arange(0, BLOCK_OUTS)
    return outs.to(tl.int64), rows.to(tl.int64)


@triton.jit
def load_part(x_at, part, lanes, K: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr):
    """Returns columns part · LANES to (part + 1) · LANES - 1 of x, as [LANES, BLOCK_ROWS]. Columns from K on are 0.
    x_at: pointers to the first LANES columns of each row. lanes: 0 to LANES - 1. STEP: columns that one step of the
    caller's loop takes. If K is a multiple of STEP, the loop ends at column K, and no mask is needed."""
    if K % STEP == 0:
        return tl.load(x_at + part * LANES)
    return tl.load(x_at + part * LANES, mask=(part * LANES + lanes < K)[:, None], other=0.0)


@triton.jit
def finish(
    total,  # [BLOCK_OUTS, BLOCK_ROWS], float32 or int32
    row_scales,  # float32 [m], read if ROW_SCALES
    out_scales,  # float32 [N], read if OUT_SCALES
    bias,  # [N], read if BIAS
    y,  # [m, N]
    outs,
    rows,
    m,
    N: tl.constexpr,
    ROW_SCALES: tl.constexpr,
    OUT_SCALES: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Stores y = total · row_scales · out_scales + bias, computed in float32 and rounded once."""
    last_out = tl.minimum(outs, N - 1)
    total = total.to(tl.float32)
    if ROW_SCALES:
        total *= tl.load(row_scales + tl.minimum(rows, m - 1))[None, :]
    if OUT_SCALES:
        total *= tl.load(out_scales + last_out)[:, None]
    if BIAS:
        total += tl.load(bias + last_out).to(tl.float32)[:, None]
    mask = (rows < m)[:, None] & (outs < N)[None, :]
    tl.store(y + rows[:, None] * N + outs[None, :], tl.trans(total.to(y.dtype.element_ty)), mask=mask)
