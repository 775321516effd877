"""RMSNorm, alone and with the residual added first (Zhang and Sennrich, 2019, section 4).

    y = x / sqrt(mean(x²) + eps) · weight                      over the last dimension
    residual += x, then y = rms_norm(residual)                  the residual rounded to its type first

Sums and products are float32, rounded once to the activations' type. A program computes ROWS whole rows and reduces
each by itself, so a row's bits depend on no other row. With QUANTIZE, it then rounds y and quantizes it to 8 bits with
a scale per row, as `quantize_rows` does; y is not written to memory. (A kernel with QUANTIZE may add up the squares of
a row in another order than one without, but in the same order in every batch.) x can be a view of heads inside a fused
projection, [num_tokens, num_heads, head_dim] with the last dimension contiguous. y is always contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.quantize_rows import QuantizedRows, as_bytes, empty_rows, quantize_whole_rows
from services.worker.ops.triton.variant import Variant

MAX_FEATURES = 32768
# A program computes at least this many elements. So several rows share a program if they are short, as heads are.
TILE = 1024


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x,  # rows of `features`; row r is at r // heads · outer_stride + r % heads · inner_stride
    residual,  # [num_rows, features], read and written if RESIDUAL
    weight,  # [features]
    y,  # [num_rows, features], of x's type; if QUANTIZE, int8 or fp8's bytes
    scales,  # float32 [num_rows], written if QUANTIZE
    num_rows,
    heads,
    outer_stride,
    inner_stride,
    eps,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,  # FEATURES, padded to a power of two
    ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    QUANTIZE: tl.constexpr,
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
    normed = (wide * scale[:, None] * gain[None, :]).to(x.dtype.element_ty)
    if QUANTIZE:
        codes, row_scales = quantize_whole_rows(normed.to(tl.float32), y.dtype.element_ty != tl.int8)
        tl.store(y + offsets, codes, mask=mask)
        tl.store(scales + rows, row_scales, mask=rows < num_rows)
    else:
        tl.store(y + offsets, normed, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalizes [..., features] into a contiguous tensor. Raises ValueError if the kernel would misread the layout."""
    if x.dim() == 3 and x.stride(2) == 1:
        heads, outer, inner = x.shape[1], x.stride(0), x.stride(1)
    elif x.is_contiguous():
        heads, outer, inner = 1, x.shape[-1], 0
    else:
        raise ValueError("rms_norm needs a contiguous x, or [num_tokens, num_heads, head_dim] with contiguous heads")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, y, None, eps, heads, outer, inner)
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds x to the residual in place, both [num_tokens, features], and returns rms_norm(residual). Raises ValueError
    if the kernel would misread a layout."""
    _check_residual(x, residual)
    y = torch.empty_like(x)
    _launch(x, residual, weight, y, None, eps, 1, x.shape[-1], 0)
    return y


def add_rms_norm_quantized(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> QuantizedRows:
    """Computes quantize_rows(add_rms_norm(x, residual, weight, eps), dtype) in one launch."""
    _check_residual(x, residual)
    num_tokens, features = x.shape
    result = empty_rows(num_tokens, features, dtype, x.device)
    _launch(x, residual, weight, as_bytes(result.values), result.scales, eps, 1, features, 0)
    return result


def _check_residual(x: Tensor, residual: Tensor) -> None:
    if not x.is_contiguous() or not residual.is_contiguous() or residual.shape != x.shape:
        raise ValueError("add_rms_norm needs a contiguous x and a contiguous residual of the same shape")


def _launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    y: Tensor,
    scales: Tensor | None,
    eps: float,
    heads: int,
    outer: int,
    inner: int,
) -> None:
    features = x.shape[-1]
    if weight.shape != (features,) or not weight.is_contiguous() or features > MAX_FEATURES:
        raise ValueError(f"rms_norm needs a contiguous weight [{features}] and at most {MAX_FEATURES} features")
    num_rows = x.numel() // features
    block, rows, warps = _tiling(features)
    if num_rows:
        rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
            x, y if residual is None else residual, weight, y, y if scales is None else scales, num_rows, heads, outer,
            inner, eps, FEATURES=features, BLOCK=block, ROWS=rows, RESIDUAL=residual is not None,
            QUANTIZE=scales is not None, num_warps=warps, **launch_arguments(),
        )  # fmt: skip


def _tiling(features: int) -> tuple[int, int, int]:
    """Returns the padded row size, rows per program, and warps. They depend only on `features`, so a row's sum has the
    same bits in every batch."""
    block = triton.next_power_of_2(features)
    return block, max(1, TILE // block), min(16, max(4, block // 512))


def variants() -> Iterator[Variant]:
    shapes = (("bf16", 64), ("bf16", 128), ("bf16", 576), ("bf16", 2048), ("bf16", 4096), ("bf16", 8192),
              ("bf16", 16384), ("fp16", 4096), ("fp32", 4096))  # fmt: skip
    for dtype, features in shapes:
        for residual, codes in (
            (False, None), *(((True, None), (True, "i8"), (True, "u8")) if features > 128 else ()),
        ):  # fmt: skip
            block, rows, warps = _tiling(features)
            tensors = dict.fromkeys(("x", "residual", "weight"), f"*{dtype}")
            tensors |= {"y": f"*{codes or dtype}", "scales": "*fp32" if codes else f"*{dtype}"}
            numbers = {"num_rows": "i32", "heads": "i32", "outer_stride": "i32:16", "inner_stride": "i32:16"}
            name = f"{'add_' if residual else ''}rms_norm {dtype} {features}"
            yield Variant(
                name + {"i8": " to int8", "u8": " to fp8"}.get(codes or "", ""),
                rms_norm_kernel,
                {**tensors, **numbers, "eps": "fp32"},
                {"FEATURES": features, "BLOCK": block, "ROWS": rows, "RESIDUAL": residual,
                 "QUANTIZE": codes is not None},
                warps,
                num_stages=3,
            )  # fmt: skip
