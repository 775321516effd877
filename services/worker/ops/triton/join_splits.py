"""Adds the partial sums of a product that is split over K, and applies scales and bias.

    y[m, n] = (Σ_s partial[s, m, n]) · row_scales[m] · out_scales[n] + bias[n]

The partial sums are added in ascending order of s, in their own type (float32, or int32, which is exact). Scales and
bias are applied in float32, and y is rounded once (split-K, NVIDIA CUTLASS, "Efficient GEMM in CUDA", section on
parallelized reductions).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.tiles import finish
from services.worker.ops.triton.variant import Variant

BLOCK = 256
NUM_WARPS = 4


@triton.jit(do_not_specialize=["m"])
def join_splits_kernel(
    partial,  # float32 or int32 [SPLITS, m, N]
    row_scales,
    out_scales,
    bias,
    y,
    m,
    N: tl.constexpr,
    SPLITS: tl.constexpr,
    ROW_SCALES: tl.constexpr,
    OUT_SCALES: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    allow_next_launch(PDL)
    wait_for_inputs(PDL)
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    outs = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = partial + rows[None, :] * N + tl.minimum(outs, N - 1)[:, None]
    total = tl.load(at)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(at + m.to(tl.int64) * (split * N))
    finish(total, row_scales, out_scales, bias, y, outs, rows, m, N, ROW_SCALES, OUT_SCALES, BIAS)


def join_splits(
    partial: Tensor, row_scales: Tensor | None, out_scales: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Returns y [m, N] in `dtype`. partial [splits, m, N], row_scales [m], out_scales [N], bias [N]: contiguous. Scales
    and biases that are None are left out."""
    splits, m, n = partial.shape
    y = torch.empty((m, n), dtype=dtype, device=partial.device)
    join_splits_kernel[(m, triton.cdiv(n, BLOCK))](
        partial,
        partial if row_scales is None else row_scales,
        partial if out_scales is None else out_scales,
        partial if bias is None else bias,
        y, m, N=n, SPLITS=splits, ROW_SCALES=row_scales is not None, OUT_SCALES=out_scales is not None,
        BIAS=bias is not None, BLOCK=BLOCK, num_warps=NUM_WARPS, **launch_arguments(),
    )  # fmt: skip
    return y


def variants() -> Iterator[Variant]:
    for partial, dtype, scaled in (("fp32", "bf16", False), ("fp32", "bf16", True), ("i32", "bf16", True)):
        signature = {"partial": f"*{partial}", "row_scales": "*fp32", "out_scales": "*fp32", "bias": f"*{dtype}"}
        yield Variant(
            f"join_splits {partial}" + (" scaled" if scaled else ""),
            join_splits_kernel,
            {**signature, "y": f"*{dtype}", "m": "i32"},
            {"N": 4096, "SPLITS": 5, "ROW_SCALES": scaled, "OUT_SCALES": scaled, "BIAS": True, "BLOCK": BLOCK},
            NUM_WARPS,
            num_stages=3,
        )
