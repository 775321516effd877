"""RMSNorm, alone and with the residual added first (Zhang and Sennrich, 2019, section 4).

    y = x / sqrt(mean(x²) + eps) · weight                      over the last dimension
    residual += x, then y = rms_norm(residual)                  the residual rounded to its type first

Sums and products are float32, rounded once to the activations' type. A program computes ROWS whole rows and reduces
each by itself, so a row's bits depend on no other row. x can be a view of heads inside a fused projection, [num_tokens,
num_heads, head_dim] with the last dimension contiguous. y is always contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.variant import Variant

MAX_FEATURES = 32768
# A program computes at least this many elements. So several rows share a program if they are short, as heads are.
TILE = 1024


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x,  # rows of `features`; row r is at r // heads · outer_stride + r % heads · inner_stride
    residual,  # [num_rows, features], read and written if RESIDUAL
    weight,  # [features]
    y,  # [num_rows, features]
    num_rows,
    heads,
    outer_stride,
    inner_stride,
    eps,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,  # FEATURES, padded to a power of two
    ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    allow_next_launch(PDL)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    if PDL:
        gain = tl.load(weight + columns, mask=columns < FEATURES, other=0.0)
        wait_for_inputs(PDL)
    mask = (rows < num_rows)[:, None] & (columns < FEATURES)[None, :]
    source = (rows // heads) * outer_stride + (rows % heads) * inner_stride
    offsets = rows[:, None] * FEATURES + columns[None, :]
    wide = tl.load(x + source[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        total = (wide + tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual + offsets, total, mask=mask)
        wide = total.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, 1) / FEATURES + eps)
    if not PDL:
        # Loaded here, the gain takes fewer registers, so that more programs run at once.
        gain = tl.load(weight + columns, mask=columns < FEATURES, other=0.0)
    gain = gain.to(tl.float32)
    tl.store(y + offsets, (wide * scale[:, None] * gain[None, :]).to(y.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalizes [..., features] into a contiguous tensor. Raises ValueError if the kernel would misread the layout."""
    if x.dim() == 3 and x.stride(2) == 1:
        heads, outer, inner = x.shape[1], x.stride(0), x.stride(1)
    elif x.is_contiguous():
        heads, outer, inner = 1, x.shape[-1], 0
    else:
        raise ValueError("rms_norm needs a contiguous x, or [num_tokens, num_heads, head_dim] with contiguous heads")
    return _launch(x, None, weight, eps, heads, outer, inner)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds x to the residual in place, both [num_tokens, features], and returns rms_norm(residual). Raises ValueError
    if the kernel would misread a layout."""
    if not x.is_contiguous() or not residual.is_contiguous() or residual.shape != x.shape:
        raise ValueError("add_rms_norm needs a contiguous x and a contiguous residual of the same shape")
    return _launch(x, residual, weight, eps, 1, x.shape[-1], 0)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, heads: int, outer: int, inner: int
) -> Tensor:
    features = x.shape[-1]
    if weight.shape != (features,) or not weight.is_contiguous() or features > MAX_FEATURES:
        raise ValueError(f"rms_norm needs a contiguous weight [{features}] and at most {MAX_FEATURES} features")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows = x.numel() // features
    block, rows, warps = _tiling(features)
    if num_rows:
        rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
            x, y if residual is None else residual, weight, y, num_rows, heads, outer, inner, eps,
            FEATURES=features, BLOCK=block, ROWS=rows, RESIDUAL=residual is not None, num_warps=warps,
            **launch_arguments(),
        )  # fmt: skip
    return y


def _tiling(features: int) -> tuple[int, int, int]:
    """Returns the padded row size, rows per program, and warps. They depend only on `features`, so a row's sum has the
    same bits in every batch."""
    block = triton.next_power_of_2(features)
    return block, max(1, TILE // block), min(16, max(4, block // 512))


def variants() -> Iterator[Variant]:
    shapes = (("bf16", 64), ("bf16", 128), ("bf16", 576), ("bf16", 2048), ("bf16", 4096), ("bf16", 8192),
              ("bf16", 16384), ("fp16", 4096), ("fp32", 4096))  # fmt: skip
    for dtype, features in shapes:
        for residual in (False, True) if features > 128 else (False,):
            block, rows, warps = _tiling(features)
            tensors = dict.fromkeys(("x", "residual", "weight", "y"), f"*{dtype}")
            numbers = {"num_rows": "i32", "heads": "i32", "outer_stride": "i32:16", "inner_stride": "i32:16"}
            yield Variant(
                f"{'add_' if residual else ''}rms_norm {dtype} {features}",
                rms_norm_kernel,
                {**tensors, **numbers, "eps": "fp32"},
                {"FEATURES": features, "BLOCK": block, "ROWS": rows, "RESIDUAL": residual},
                warps,
                num_stages=3,
            )
