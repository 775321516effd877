"""y = x Wᵀ + b with weights and activations of 8 bits (W8A8).

    y[m, n] = (Σ_k q[m, k] · v[n, k]) · x_scale[m] · scale[n] + b[n]          q and v int8: the sum exact, in int32
                                                                              q and v fp8 e4m3: the sum in float32

q is x, quantized row by row (`quantize_rows.py`). v keeps the checkpoint's layout, [N, K]: each step along K reads
whole cache lines of 128 bytes, and the values need no conversion. (LLM.int8(), Dettmers et al., 2022, section 3;
Micikevicius et al., 2022, for fp8.) `tiles.py` describes the tiles and the split of K.

Hopper's fp8 tensor cores add less exactly than float32 does. One instruction adds 32 products and the sum so far, and
cuts off each of them 13 binary places below the leading digit of the largest (DeepSeek-AI, 2024, "DeepSeek-V3 Technical
Report", section 3.3.2). So tensor cores sum only the products of one step, 128 columns, and the sums of the steps are
added in full float32. On an H200, the error of a sum stayed below 2⁻¹³ of the sum of its products' absolute values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.prefetch import prefetch_rows
from services.worker.ops.triton.split_k import finish_stretch, scratch_of, scratch_types
from services.worker.ops.triton.tiles import GROUP_ROWS, Tiles, TileTable, cut, tile_of_program
from services.worker.ops.triton.variant import TARGETS, Variant

# All tiles fit into 99 KiB of shared memory. Every GPU of compute capability 8.0 or higher has at least that much.
# Measured with fp8 on an H200 (`python -m benchmarks.gpu tiles --quantization fp8`), the last class with 192 rows.
QUANTIZED = TileTable(
    (
        Tiles(rows=16, outs=128, k=128, num_warps=8, num_stages=4, programs=396),
        Tiles(rows=32, outs=64, k=128, num_warps=4, num_stages=4),
        Tiles(rows=64, outs=128, k=128, num_warps=8, num_stages=4, programs=132),
        Tiles(rows=128, outs=64, k=128, num_warps=4, num_stages=4),
        Tiles(rows=64, outs=128, k=128, num_warps=8, num_stages=4),
    )
)


@triton.jit(do_not_specialize=["m"])
def eight_bit_kernel(
    x,  # int8 or fp8 [m, K], rows x_stride apart
    weight,  # [N, K], of x's type
    scales,  # float32 [N]
    row_scales,  # float32 [m]
    bias,  # [N], read if BIAS
    y,  # [m, N], of any float type
    partials,  # see `finish_stretch`
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
    GROUP_ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    outs, rows = tile_of_program(m, N, BLOCK_OUTS, BLOCK_ROWS, GROUP_ROWS)
    lanes = tl.arange(0, BLOCK_K)
    weight_at = weight + tl.minimum(outs, N - 1)[:, None] * K + lanes[None, :]
    x_at = x + tl.minimum(rows, m - 1)[None, :] * x_stride + lanes[:, None]
    exact: tl.constexpr = x.dtype.element_ty == tl.int8
    total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.int32 if exact else tl.float32)
    first = tl.program_id(1) * (STEPS * BLOCK_K)
    prefetch_rows(weight, tl.minimum(outs, N - 1), first, K, BLOCK_OUTS, PDL)
    wait_for_inputs(PDL)
    for start in range(first, tl.minimum(first + STEPS * BLOCK_K, K), BLOCK_K):
        if K % BLOCK_K == 0:
            w = tl.load(weight_at + start)
            a = tl.load(x_at + start)
        else:
            w = tl.load(weight_at + start, mask=(start + lanes < K)[None, :], other=0.0)
            a = tl.load(x_at + start, mask=(start + lanes < K)[:, None], other=0.0)
        total = tl.dot(w, a, total, max_num_imprecise_acc=None if exact else BLOCK_K, out_dtype=total.dtype)
    allow_next_launch(PDL)
    finish_stretch(
        total, row_scales, scales, bias, y, partials, counters, outs, rows, m, N, True, True, BIAS, SPLITS, BLOCK_ROWS,
        BLOCK_OUTS,
    )  # fmt: skip


def eight_bit(
    x: Tensor,
    values: Tensor,
    scales: Tensor,
    row_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """Returns y [m, N] in `dtype`. x [m, K], contiguous rows, and values [N, K], contiguous: both int8 or both
    float8_e4m3fn. scales [N], row_scales [m]: float32. bias [N]. Raises ValueError for arguments that the kernel would
    misread."""
    (m, k), (n, _) = x.shape, values.shape
    if x.shape[1] != values.shape[1] or x.stride(1) != 1 or not values.is_contiguous():
        raise ValueError(
            f"the weight [{n}, {values.shape[1]}] must be contiguous, and x must have contiguous rows of that length"
        )
    if x.dtype is not values.dtype:
        raise ValueError(f"x is {x.dtype}, but the weight is {values.dtype}; they must have one type")
    if not m:
        return torch.empty((0, n), dtype=dtype, device=x.device)
    tiles = QUANTIZED.of(m)
    plan = cut(tiles, m, n, triton.cdiv(k, tiles.k), may_split=not batch_invariant)
    y = torch.empty((m, n), dtype=dtype, device=x.device)
    partials, counters = scratch_of(plan, y, torch.int32 if x.dtype is torch.int8 else torch.float32)
    eight_bit_kernel[(plan.tiles, plan.splits)](
        x, values, scales, row_scales, scales if bias is None else bias, y, partials, counters, m, x.stride(0),
        N=n, K=k, BIAS=bias is not None, SPLITS=plan.splits, STEPS=plan.steps, BLOCK_ROWS=tiles.rows,
        BLOCK_OUTS=tiles.outs, BLOCK_K=tiles.k, GROUP_ROWS=GROUP_ROWS, num_warps=tiles.num_warps,
        num_stages=tiles.num_stages, **launch_arguments(),
    )  # fmt: skip
    return y


def variants() -> Iterator[Variant]:
    from_8_9 = tuple(target for target in TARGETS if target >= 89)
    for kind, sums, targets in (("i8", "i32", TARGETS), ("fp8e4nv", "fp32", from_8_9)):
        for size, tiles, k, split in QUANTIZED.launches(4096, 576):
            tensors = {"x": kind, "weight": kind, "scales": "fp32", "row_scales": "fp32", "bias": "bf16", "y": "bf16"}
            yield Variant(
                f"eight_bit {kind} x {kind}, {size}",
                eight_bit_kernel,
                {**{name: f"*{kind}" for name, kind in tensors.items()},
                 **scratch_types("bf16", is_split=split, sums=sums), "m": "i32", "x_stride": "i32:16"},
                {"N": 4096, "K": k, "BIAS": True, "SPLITS": 4 if split else 1,
                 "STEPS": 8 if split else triton.cdiv(k, tiles.k), "BLOCK_ROWS": tiles.rows, "BLOCK_OUTS": tiles.outs,
                 "BLOCK_K": tiles.k, "GROUP_ROWS": GROUP_ROWS},
                tiles.num_warps,
                tiles.num_stages,
                targets,
                loop_bytes=tiles.outs * tiles.k if split and tiles.rows <= 64 else 0,
            )  # fmt: skip
