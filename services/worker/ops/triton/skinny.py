"""y = x Wᵀ + b with 16-bit weights and 1 to 64 rows of x, in one launch.

    y[m, n] = Σ_s (Σ_{k in stretch s} x[m, k] · W[n, k]) + b[n]        both sums in float32, s ascending

With so few rows, a product takes the time to read its weight. Two kernels read it:

- `tensor_core_kernel` multiplies tiles of W by rows of x with `tl.dot`, W as the left operand (`tiles.py`).
- `gemv_kernel` multiplies elementwise in float32, for at most four rows.

If the tiles of W are too few to fill the GPU, K is split into stretches, and `split_k.py` joins them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.prefetch import prefetch_rows
from services.worker.ops.triton.split_k import finish_stretch, scratch_of, scratch_types
from services.worker.ops.triton.tiles import MAX_PARTIALS, MAX_SPLIT_TILES, Cut, Tiles
from services.worker.ops.triton.variant import TARGETS, Variant

MAX_ROWS = 64
MAX_GEMV_ROWS = 4
_MIN_STEPS = 4  # minimum number of steps of BLOCK_K in a stretch, so that loads can run ahead
# A thread loads 16 bytes at once and adds up their products before it adds them to its totals.
_PER_LOAD = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a product runs. `tiles.rows`: the most rows of x that it is for, a power of two."""

    tiles: Tiles
    programs: int  # split K into stretches until there are at least this many programs
    tensor_cores: bool  # else `gemv_kernel`, for at most MAX_GEMV_ROWS rows


# For each class of row counts, ascending: what `skinny` runs without a tuning. All tiles fit into 99 KiB of shared
# memory, as in `matmul.py`.
TUNINGS = (
    Tuning(Tiles(rows=1, outs=16, k=256, num_warps=4, num_stages=4), programs=256, tensor_cores=False),
    Tuning(Tiles(rows=2, outs=16, k=256, num_warps=4, num_stages=4), programs=256, tensor_cores=False),
    Tuning(Tiles(rows=8, outs=64, k=128, num_warps=4, num_stages=4), programs=264, tensor_cores=True),
    Tuning(Tiles(rows=16, outs=64, k=128, num_warps=4, num_stages=4), programs=264, tensor_cores=True),
    Tuning(Tiles(rows=32, outs=64, k=128, num_warps=4, num_stages=4), programs=264, tensor_cores=True),
    Tuning(Tiles(rows=64, outs=64, k=128, num_warps=4, num_stages=3), programs=264, tensor_cores=True),
)


@dataclass(frozen=True, slots=True)
class Faster:
    """A class of products that run faster with `tuning` than in cuBLAS. `rows` must not exceed `tuning.tiles.rows`."""

    outs: range
    inputs: range
    rows: range
    tuning: Tuning


_NARROW = Tuning(Tiles(rows=8, outs=64, k=128, num_warps=4, num_stages=4), programs=264, tensor_cores=True)
_EIGHT = Tuning(Tiles(rows=8, outs=32, k=128, num_warps=2, num_stages=5), programs=396, tensor_cores=True)
_WIDE = Tuning(Tiles(rows=16, outs=128, k=128, num_warps=8, num_stages=3), programs=132, tensor_cores=True)
_FEW_OUTPUTS, _MANY_OUTPUTS = range(2048, 5121), range(16_384, 65_537)
_INPUTS = range(2048, 8193)
MEASURED = 90  # compute capability times ten of the GPUs for which FASTER holds
# Measured on an H200 by `python -m benchmarks.gpu skinny`, with the four weights of a layer of Llama-3.1-8B. One row
# takes 14.2, 10.8, 56.1 and 29.8 us (cuBLAS 16.6, 13.3, 56.4 and 31.8), eight rows 15.9, 11.5, 57.5 and 31.4 us (16.0,
# 13.1, 61.4 and 32.2). From 17 rows on, cuBLAS is as fast or faster. The first entry that matches is used.
FASTER: tuple[Faster, ...] = (
    Faster(range(2048, 65_537), range(2048, 16_385), range(1, 2), TUNINGS[0]),
    Faster(range(2048, 16_384), range(2048, 16_385), range(2, 3), TUNINGS[1]),
    Faster(_FEW_OUTPUTS, _INPUTS, range(3, 5), _NARROW),
    Faster(_MANY_OUTPUTS, _INPUTS, range(3, 5), _NARROW),
    Faster(_FEW_OUTPUTS, range(2048, 16_385), range(5, 9), _EIGHT),
    Faster(_MANY_OUTPUTS, _INPUTS, range(5, 9), _EIGHT),
    Faster(_FEW_OUTPUTS, _INPUTS, range(9, 17), _WIDE),
    Faster(_MANY_OUTPUTS, _INPUTS, range(9, 17), _WIDE),
)


def chosen(rows: int, n: int, k: int) -> Tuning | None:
    """Returns how to multiply `rows` rows by a weight [n, k], or None if cuBLAS is faster."""
    for entry in FASTER:
        if rows in entry.rows and n in entry.outs and k in entry.inputs:
            return entry.tuning
    return None


def tuning_of(num_rows: int) -> Tuning:
    """Returns the stored tuning for 1 to MAX_ROWS rows."""
    return next(tuning for tuning in TUNINGS if num_rows <= tuning.tiles.rows)


@triton.jit(do_not_specialize=["m"])
def tensor_core_kernel(
    x,  # [m, K], rows x_stride apart
    weight,  # [N, K]
    bias,
    y,
    partials,
    counters,
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    STEPS: tl.constexpr,  # steps of K that one program computes
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    outs = tl.program_id(0).to(tl.int64) * BLOCK_OUTS + tl.arange(0, BLOCK_OUTS)
    rows = tl.arange(0, BLOCK_ROWS)
    lanes = tl.arange(0, BLOCK_K)
    weight_at = weight + tl.minimum(outs, N - 1)[:, None] * K + lanes[None, :]
    x_at = x + rows.to(tl.int64)[None, :] * x_stride + lanes[:, None]
    # A masked row is filled with zeros. Reading the last row instead, as in `tiles.py`, would read up to 16 times as
    # much of x from the L2 cache as there is.
    exists = (rows < m)[None, :]
    first = tl.program_id(1) * STEPS
    prefetch_rows(weight, tl.minimum(outs, N - 1), first * BLOCK_K, K, BLOCK_OUTS, PDL)
    wait_for_inputs(PDL)
    total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
    for step in tl.range(first, tl.minimum(first + STEPS, (K + BLOCK_K - 1) // BLOCK_K), num_stages=STAGES):
        start = step * BLOCK_K
        if K % BLOCK_K == 0:
            w = tl.load(weight_at + start, eviction_policy="evict_first")
            a = tl.load(x_at + start, mask=exists, other=0.0)
        else:
            inside = start + lanes < K
            w = tl.load(weight_at + start, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            a = tl.load(x_at + start, mask=exists & inside[:, None], other=0.0)
        total = tl.dot(w, a, total)
    allow_next_launch(PDL)
    finish_stretch(
        total, y, y, bias, y, partials, counters, outs, rows.to(tl.int64), m, N, False, False, BIAS, SPLITS, BLOCK_ROWS,
        BLOCK_OUTS,
    )  # fmt: skip


@triton.jit
def row_sums(
    w, x, start, lanes, K: tl.constexpr, BLOCK_OUTS: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr
):
    """Multiplies w [BLOCK_OUTS, BLOCK_K] by columns start to start + BLOCK_K - 1 of one row of x. Returns the sums over
    each _PER_LOAD columns, [BLOCK_OUTS, BLOCK_K / _PER_LOAD]: these stay within a thread."""
    columns = start + lanes
    if STAGES == 1:
        # Let a thread load the columns of x that it needs for each of its outputs, from the L1 cache. Loaded once, x
        # would pass through shared memory, with a barrier in each step.
        columns = tl.broadcast_to(columns[None, :], [BLOCK_OUTS, BLOCK_K])
    if K % BLOCK_K == 0:
        a = tl.load(x + columns).to(tl.float32)
    else:
        a = tl.load(x + columns, mask=columns < K, other=0.0).to(tl.float32)
    products = w * (a if STAGES == 1 else a[None, :])
    return tl.sum(tl.reshape(products, [BLOCK_OUTS, BLOCK_K // _PER_LOAD, _PER_LOAD]), 2)


@triton.jit(do_not_specialize=["m"])
def gemv_kernel(
    x,  # [m, K], rows x_stride apart
    weight,  # [N, K]
    bias,
    y,
    partials,
    counters,
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    STEPS: tl.constexpr,  # steps of K that one program computes
    BLOCK_ROWS: tl.constexpr,  # 1, 2 or 4
    BLOCK_OUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,  # 1: weights are loaded into registers; more: through shared memory
    PDL: tl.constexpr,
):
    outs = tl.program_id(0).to(tl.int64) * BLOCK_OUTS + tl.arange(0, BLOCK_OUTS)
    lanes = tl.arange(0, BLOCK_K)
    weight_at = weight + tl.minimum(outs, N - 1)[:, None] * K + lanes[None, :]
    # Rows past the last are computed from the last row, and not stored.
    last_row = (m - 1).to(tl.int64)
    second_row = x + tl.minimum(1, last_row) * x_stride
    third_row = x + tl.minimum(2, last_row) * x_stride
    fourth_row = x + tl.minimum(3, last_row) * x_stride
    first = tl.program_id(1) * STEPS
    prefetch_rows(weight, tl.minimum(outs, N - 1), first * BLOCK_K, K, BLOCK_OUTS, PDL)
    wait_for_inputs(PDL)
    # The last dimension counts rows of x.
    total = tl.zeros([BLOCK_OUTS, BLOCK_K // _PER_LOAD, BLOCK_ROWS], tl.float32)
    for step in tl.range(first, tl.minimum(first + STEPS, (K + BLOCK_K - 1) // BLOCK_K), num_stages=STAGES):
        start = step * BLOCK_K
        if K % BLOCK_K == 0:
            w = tl.load(weight_at + start, eviction_policy="evict_first").to(tl.float32)
        else:
            inside = (start + lanes < K)[None, :]
            w = tl.load(weight_at + start, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        sums = row_sums(w, x, start, lanes, K, BLOCK_OUTS, BLOCK_K, STAGES)
        if BLOCK_ROWS == 1:
            total += sums[:, :, None]
        else:
            second = row_sums(w, second_row, start, lanes, K, BLOCK_OUTS, BLOCK_K, STAGES)
            if BLOCK_ROWS == 2:
                total += tl.join(sums, second)
            else:
                third = row_sums(w, third_row, start, lanes, K, BLOCK_OUTS, BLOCK_K, STAGES)
                fourth = row_sums(w, fourth_row, start, lanes, K, BLOCK_OUTS, BLOCK_K, STAGES)
                pairs = tl.join(tl.join(sums, third), tl.join(second, fourth))
                total += tl.reshape(pairs, [BLOCK_OUTS, BLOCK_K // _PER_LOAD, BLOCK_ROWS])
    allow_next_launch(PDL)
    rows = tl.arange(0, BLOCK_ROWS).to(tl.int64)
    finish_stretch(
        tl.sum(total, 1), y, y, bias, y, partials, counters, outs, rows, m, N, False, False, BIAS, SPLITS, BLOCK_ROWS,
        BLOCK_OUTS,
    )  # fmt: skip


def may_serve(weight: Tensor) -> bool:
    """Returns whether some number of rows is multiplied by this weight faster than in cuBLAS, on the weight's GPU."""
    if weight.dtype not in (torch.bfloat16, torch.float16) or not weight.is_cuda:
        return False
    n, k = weight.shape
    is_measured = 10 * torch.cuda.get_device_capability(weight.device)[0] == MEASURED
    return is_measured and any(n in entry.outs and k in entry.inputs for entry in FASTER)


def cut(tuning: Tuning, n: int, k: int) -> Cut:
    """Cuts a product into tiles of outputs and stretches of K. Depends on no other number of rows than the tuning's."""
    tiles = triton.cdiv(n, tuning.tiles.outs)
    num_steps = triton.cdiv(k, tuning.tiles.k)
    splits = min(
        triton.cdiv(tuning.programs, tiles),
        num_steps // _MIN_STEPS,
        MAX_PARTIALS // (tiles * tuning.tiles.outs * tuning.tiles.rows) if tiles <= MAX_SPLIT_TILES else 1,
    )
    steps = triton.cdiv(num_steps, max(1, splits))
    return Cut(tiles, triton.cdiv(num_steps, steps), steps)


def skinny(x: Tensor, weight: Tensor, bias: Tensor | None, tuning: Tuning | None = None) -> Tensor:
    """Returns x · weightᵀ + bias, [m, N], summed in float32 and rounded once. x [m, K]: contiguous rows, at most
    `tuning.tiles.rows`, or MAX_ROWS without a tuning. weight [N, K] and bias [N]: contiguous. All are bfloat16, or all
    are float16. Raises ValueError for arguments that the kernels would misread."""
    n, k = weight.shape
    if weight.dtype not in (torch.bfloat16, torch.float16) or not weight.is_contiguous():
        raise ValueError(f"the weight must be bfloat16 or float16, and contiguous; it is {weight.dtype}")
    if x.dim() != 2 or x.shape[1] != k or x.stride(1) != 1 or x.dtype != weight.dtype:
        raise ValueError(f"x must be {weight.dtype} [m, {k}] with contiguous rows")
    if bias is not None and (bias.shape != (n,) or not bias.is_contiguous() or bias.dtype != weight.dtype):
        raise ValueError(f"the bias must be {weight.dtype} [{n}] and contiguous")
    m, most = len(x), MAX_ROWS if tuning is None else tuning.tiles.rows
    if m > most:
        raise ValueError(f"x has {m} rows, and may have {most}")
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        tuning = tuning_of(m) if tuning is None else tuning
        plan = cut(tuning, n, k)
        partials, counters = scratch_of(plan, y)
        kernel = tensor_core_kernel if tuning.tensor_cores else gemv_kernel
        kernel[(plan.tiles, plan.splits)](
            x, weight, weight if bias is None else bias, y, partials, counters, m, x.stride(0),
            **_constants(tuning, n, k, bias is not None), num_warps=tuning.tiles.num_warps,
            num_stages=tuning.tiles.num_stages, **launch_arguments(),
        )  # fmt: skip
    return y


def _constants(tuning: Tuning, n: int, k: int, has_bias: bool) -> dict[str, int]:
    tiles, plan = tuning.tiles, cut(tuning, n, k)
    return {
        "N": n, "K": k, "BIAS": has_bias, "SPLITS": plan.splits, "STEPS": plan.steps, "BLOCK_ROWS": tiles.rows,
        "BLOCK_OUTS": tiles.outs, "BLOCK_K": tiles.k, "STAGES": tiles.num_stages,
    }  # fmt: skip


def variant_of(tuning: Tuning, dtype: str, n: int, k: int, *, has_bias: bool) -> Variant:
    """Returns what `skinny` launches for a weight [n, k] of type `dtype`, "bf16" or "fp16"."""
    tiles, constants = tuning.tiles, _constants(tuning, n, k, has_bias)
    places = scratch_types(dtype, is_split=constants["SPLITS"] > 1)
    return Variant(
        f"skinny {dtype} {n} x {k}, {tiles.rows} rows" + ("" if tuning.tensor_cores else ", gemv"),
        tensor_core_kernel if tuning.tensor_cores else gemv_kernel,
        {**dict.fromkeys(("x", "weight", "bias", "y"), f"*{dtype}"), **places, "m": "i32", "x_stride": "i32:16"},
        constants,
        tiles.num_warps,
        tiles.num_stages,
        capabilities=TARGETS if tuning in TUNINGS else (MEASURED,),
        loop_bytes=tiles.outs * tiles.k * 2 if tuning.tensor_cores else 0,
    )


def variants() -> Iterator[Variant]:
    """Yields the stored tunings for Llama-3.1-8B's shapes of a split and an unsplit weight, and one with a mask."""
    for tuning in dict.fromkeys((*TUNINGS, *(entry.tuning for entry in FASTER))):
        for dtype, n, k in (("bf16", 4096, 14336), ("bf16", 28672, 4096), ("fp16", 576, 1000)):
            yield variant_of(tuning, dtype, n, k, has_bias=True)
