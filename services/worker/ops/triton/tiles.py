"""How a product y = x Wᵀ is cut into programs, and how a program ends: what the GEMMs have in common.

A program computes a tile [BLOCK_OUTS, BLOCK_ROWS] of yᵀ = W xᵀ, with the weights as the left operand. Hopper's tensor
cores (wgmma) want 64 rows of the left operand at least, but only 8 columns of the right: few rows of x are not padded
to 64. And of the two operands only the left may come from registers, where weights are dequantized.

Few rows make few tiles, too few for the device's processors: K is split then (split-K), each program adds up its
stretch, and `join_splits.py` adds the stretches in ascending order. Where K is split depends on the weight's shape and
on the class of row counts alone; nothing is added atomically, so a product has the same bits whenever it is repeated.
In batch-invariant mode nothing is split, and K goes up in the same steps for every number of rows.

Rows and outputs past the last are the last ones again: read, computed, and not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

# Row tiles that walk the same outputs together, so that a tile of W is read from memory once for all of them.
GROUP_ROWS = 8
# What is split makes at least that many programs, three for two of an H200's processors. With 24 KB or more on their
# way for each they keep 4.8 TB/s busy over 0.8 µs of latency, and 28,672 outputs (Llama-3.1-8B's widest) need no join.
PROGRAMS = 198
_MIN_STEPS = 4  # of BLOCK_K in a stretch, for loads to run ahead
LEAST_K = 16  # of the shortest product of a tensor core


@dataclass(frozen=True, slots=True)
class Tiles:
    rows: int
    outs: int
    k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class TileTable:
    """By the number of rows. Every tile of a table has one k, or is told it by the weight's layout."""

    few: Tiles
    some: Tiles
    many: Tiles

    def of(self, num_rows: int) -> Tiles:
        if num_rows <= self.few.rows:
            return self.few
        return self.some if num_rows <= self.some.rows else self.many


@dataclass(frozen=True, slots=True)
class Cut:
    """One launch: a grid of `tiles` × `splits` programs."""

    tiles: int
    splits: int
    steps: int  # of K in each stretch, the last of which may be shorter


def cut(tiles: Tiles, num_rows: int, n: int, num_steps: int, may_split: bool) -> Cut:
    """`num_steps`: of the whole K. Splits only what is one row tile, so that their number hides no number of rows."""
    row_tiles = triton.cdiv(num_rows, tiles.rows)
    programs = row_tiles * triton.cdiv(n, tiles.outs)
    splits = min(triton.cdiv(PROGRAMS, programs), num_steps // _MIN_STEPS) if may_split and row_tiles == 1 else 1
    steps = triton.cdiv(num_steps, max(1, splits))
    return Cut(programs, triton.cdiv(num_steps, steps), steps)


@triton.jit
def tile_of_program(m, N: tl.constexpr, BLOCK_OUTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr):
    """The outputs [BLOCK_OUTS] and rows [BLOCK_ROWS] of this program, int64."""
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
    """Loads a part of x, [LANES, BLOCK_ROWS]: LANES columns from column part · LANES on. A column past K is 0; none is
    where K is a multiple of STEP, the columns that the caller's loop takes at a time. x_at: pointers to column `lanes`
    of each row."""
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
    """y = total · row_scales · out_scales + bias in float32, rounded once."""
    last_out = tl.minimum(outs, N - 1)
    total = total.to(tl.float32)
    if ROW_SCALES:
        total *= tl.load(row_scales + tl.minimum(rows, m - 1))[None, :]
    if OUT_SCALES:
        total *= tl.load(out_scales + last_out)[:, None]
    if BIAS:
        total += tl.load(bias + last_out).to(tl.float32)[:, None]
    store_tile(y, total.to(y.dtype.element_ty), outs, rows, m, N)


@triton.jit
def store_tile(y, tile, outs, rows, m, N: tl.constexpr):
    """tile [BLOCK_OUTS, BLOCK_ROWS] to y [m, N], transposed."""
    mask = (rows < m)[:, None] & (outs < N)[None, :]
    tl.store(y + rows[:, None] * N + outs[None, :], tl.trans(tile), mask=mask)
