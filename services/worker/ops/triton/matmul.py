"""y = x Wᵀ + b with one order of summation for every number of rows: the GEMM of batch-invariant mode.

    y[m, n] = Σ_k x[m, k] · W[n, k] + b[n],    k in tiles of BLOCK_K, ascending, accumulated in float32

cuBLAS chooses tiles, and whether to split k, by the number of rows, and with them a row's bits. Here one tile shape
serves all: of type and device alone, never of m. Rows past the last are zeros in the tile, which change nobody's sum.
The price is that few rows compute as many as a tile has, and that many rows run at a middling tile's rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.variant import Variant


@dataclass(frozen=True, slots=True)
class Tiles:
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


# 16-bit types on tensor cores: 96 KiB of shared memory, which every GPU from compute capability 8.0 on has.
HALF = Tiles(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=3)
SINGLE = Tiles(block_m=64, block_n=64, block_k=32, num_warps=8, num_stages=3)
# Row tiles that walk the same columns together, so that a tile of W is read from memory once for all of them.
GROUP_M = 8


@triton.jit(do_not_specialize=["m"])
def matmul_kernel(
    x,  # [m, n_in], rows x_stride apart
    weight,  # [N, K]
    bias,  # [N], read if BIAS
    y,  # [m, N]
    m,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    group = tl.program_id(0) // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    within = tl.program_id(0) % (GROUP_M * tiles_n)
    rows = ((group * GROUP_M + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = ((within // height) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    lanes = tl.arange(0, BLOCK_K)
    x_at = x + rows[:, None] * x_stride + lanes[None, :]
    weight_at = weight + columns[None, :] * K + lanes[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        x_mask, weight_mask = (rows < m)[:, None], (columns < N)[None, :]
        if K % BLOCK_K != 0:
            x_mask &= (start + lanes < K)[None, :]
            weight_mask &= (start + lanes < K)[:, None]
        a = tl.load(x_at + start, mask=x_mask, other=0.0)
        b = tl.load(weight_at + start, mask=weight_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    tl.store(
        y + rows[:, None] * N + columns[None, :],
        total.to(y.dtype.element_ty),
        mask=(rows < m)[:, None] & (columns < N)[None, :],
    )


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[m, K] with contiguous rows, [N, K] and [N], contiguous, of one type -> [m, N]. Raises ValueError otherwise."""
    n, k = weight.shape
    if x.dim() != 2 or x.shape[1] != k or x.stride(1) != 1 or not weight.is_contiguous() or x.dtype != weight.dtype:
        raise ValueError(f"matmul wants rows of {k} {weight.dtype} and a contiguous weight")
    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    if len(x):
        tiles = SINGLE if x.dtype is torch.float32 else HALF
        matmul_kernel[(triton.cdiv(x.shape[0], tiles.block_m) * triton.cdiv(n, tiles.block_n),)](
            x, weight, weight if bias is None else bias, y, x.shape[0], x.stride(0),
            N=n, K=k, BIAS=bias is not None, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
            GROUP_M=GROUP_M, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
    return y


def variants() -> Iterator[Variant]:
    for dtype, tiles, n, k in (("bf16", HALF, 6144, 4096), ("bf16", HALF, 576, 1536), ("fp16", HALF, 4096, 14336),
                               ("fp32", SINGLE, 4096, 4096)):  # fmt: skip
        for bias in (False, True):
            yield Variant(
                f"matmul {dtype} {n} x {k}" + (" bias" if bias else ""),
                matmul_kernel,
                {**dict.fromkeys(("x", "weight", "bias", "y"), f"*{dtype}"), "m": "i32", "x_stride": "i32:16"},
                {"N": n, "K": k, "BIAS": bias, "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n,
                 "BLOCK_K": tiles.block_k, "GROUP_M": GROUP_M},
                tiles.num_warps,
                tiles.num_stages,
            )  # fmt: skip
