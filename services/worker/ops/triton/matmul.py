"""y = x Wᵀ + b with the same order of summation for every number of rows: the GEMM of batch-invariant mode.

    y[m, n] = Σ_k x[m, k] · W[n, k] + b[n],    k in steps of BLOCK_K, ascending, accumulated in float32

cuBLAS chooses tiles, and whether to split k, by the number of rows, so the bits of a row change with the number of
rows. This kernel never splits k, and its steps of k depend only on the type. The number of rows per tile does depend on
m, but it changes neither the products that are added up for an element of y nor their order. It only changes the number
of columns of the tensor-core instruction. W is the left operand (`tiles.py`), so these columns are rows of x, and each
column is computed independently.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.tiles import GROUP_ROWS, Tiles, TileTable, finish, tile_of_program
from services.worker.ops.triton.variant import Variant

# For 16-bit types, on tensor cores. All tiles fit into 99 KiB of shared memory. Every GPU of compute capability 8.0 or
# later has at least this much.
HALF = TileTable(
    (
        Tiles(rows=16, outs=64, k=64, num_warps=4, num_stages=5),
        Tiles(rows=64, outs=64, k=64, num_warps=4, num_stages=4),
        Tiles(rows=128, outs=128, k=64, num_warps=8, num_stages=3),
    )
)
SINGLE = TileTable(
    (
        Tiles(rows=16, outs=64, k=32, num_warps=4, num_stages=3),
        Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
        Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
    )
)


@triton.jit(do_not_specialize=["m"])
def matmul_kernel(
    x,  # [m, K], rows x_stride apart
    weight,  # [N, K]
    bias,  # [N], read if BIAS
    y,  # [m, N]
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_inputs(PDL)
    outs, rows = tile_of_program(m, N, BLOCK_OUTS, BLOCK_ROWS, GROUP_ROWS)
    lanes = tl.arange(0, BLOCK_K)
    weight_at = weight + tl.minimum(outs, N - 1)[:, None] * K + lanes[None, :]
    x_at = x + tl.minimum(rows, m - 1)[None, :] * x_stride + lanes[:, None]
    total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
    for start in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            w = tl.load(weight_at + start)
            a = tl.load(x_at + start)
        else:
            w = tl.load(weight_at + start, mask=(start + lanes < K)[None, :], other=0.0)
            a = tl.load(x_at + start, mask=(start + lanes < K)[:, None], other=0.0)
        total = tl.dot(w, a, total, input_precision="ieee")
    allow_next_launch(PDL)
    finish(total, y, y, bias, y, outs, rows, m, N, False, False, BIAS)


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x · weightᵀ + bias, [m, N]. x [m, K]: contiguous rows. weight [N, K] and bias [N]: contiguous, of x's
    type. Raises ValueError if x or the weight has another shape, layout or type."""
    n, k = weight.shape
    if x.dim() != 2 or x.shape[1] != k or x.stride(1) != 1 or not weight.is_contiguous() or x.dtype != weight.dtype:
        raise ValueError(f"x must be {weight.dtype} [m, {k}] with contiguous rows, and the weight must be contiguous")
    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    if len(x):
        tiles = (SINGLE if x.dtype is torch.float32 else HALF).of(len(x))
        matmul_kernel[(triton.cdiv(x.shape[0], tiles.rows) * triton.cdiv(n, tiles.outs),)](
            x, weight, weight if bias is None else bias, y, x.shape[0], x.stride(0),
            N=n, K=k, BIAS=bias is not None, BLOCK_ROWS=tiles.rows, BLOCK_OUTS=tiles.outs, BLOCK_K=tiles.k,
            GROUP_ROWS=GROUP_ROWS, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            **launch_arguments(),
        )  # fmt: skip
    return y


def variants() -> Iterator[Variant]:
    for dtype, table, n, k in (("bf16", HALF, 6144, 4096), ("bf16", HALF, 576, 1536), ("fp16", HALF, 4096, 14336),
                               ("fp32", SINGLE, 4096, 4096)):  # fmt: skip
        for size, tiles in zip(("few", "some", "many"), table.classes, strict=True):
            yield Variant(
                f"matmul {dtype} {n} x {k}, {size} rows",
                matmul_kernel,
                {**dict.fromkeys(("x", "weight", "bias", "y"), f"*{dtype}"), "m": "i32", "x_stride": "i32:16"},
                {"N": n, "K": k, "BIAS": True, "BLOCK_ROWS": tiles.rows, "BLOCK_OUTS": tiles.outs,
                 "BLOCK_K": tiles.k, "GROUP_ROWS": GROUP_ROWS},
                tiles.num_warps,
                tiles.num_stages,
            )  # fmt: skip
