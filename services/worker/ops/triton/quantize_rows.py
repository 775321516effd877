"""Quantizes rows of activations to 8 bits by their largest magnitude. The results are bitwise those of `kinds/rows.py`.

    a = max(max |x|, 1e-10)      q = round(x · (Q / a))      scale = a / Q      Q = 448 (fp8 e4m3) or 127 (int8)

x [m, features] -> q [m, features] and scale, float32 [m]. Divisions round as in IEEE 754. On every GPU, values are
converted to fp8 with integer arithmetic (`fp8.py`). The instruction of newer GPUs would give the same bits and save no
time, because the kernel is bound by memory. If x has a NaN, the scale of its row is NaN, so that all products with the
row are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.fp8 import to_e4m3
from services.worker.ops.triton.variant import Variant
from services.worker.quantization.kinds import FLOOR, FP8_MAX, INT8_MAX

# Maximum number of elements of a row that are loaded at a time. In most models, this is enough for a whole row.
MAX_BLOCK = 8192

_FLOOR = tl.constexpr(FLOOR)
_FP8_MAX = tl.constexpr(FP8_MAX)
_INT8_MAX = tl.constexpr(INT8_MAX)
# Adding this to a float32 below 2**22 in magnitude leaves the nearest integer, ties to even, in the sum's lowest bits.
_SHIFTER = tl.constexpr(1.5 * 2.0**23)


@triton.jit
def quantize_rows_kernel(
    x,  # [m, FEATURES], rows x_stride apart
    q,  # int8 [m, FEATURES], or fp8's bytes if FP8
    scales,  # float32 [m]
    x_stride,
    FEATURES: tl.constexpr,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    allow_next_launch(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    greatest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, FEATURES, BLOCK):
        wide = tl.load(x + row * x_stride + start + columns, mask=start + columns < FEATURES, other=0.0)
        greatest = tl.maximum(greatest, tl.abs(wide.to(tl.float32)), propagate_nan=tl.PropagateNan.ALL)
    nans = tl.max((greatest != greatest).to(tl.int32))
    amax = tl.maximum(tl.max(greatest), _FLOOR)
    amax = tl.where(nans > 0, float("nan"), amax)
    limit: tl.constexpr = _FP8_MAX if FP8 else _INT8_MAX
    ratio = tl.div_rn(limit + 0.0 * amax, amax)
    tl.store(scales + row, tl.div_rn(amax, limit + 0.0 * amax))
    for start in range(0, FEATURES, BLOCK):
        mask = start + columns < FEATURES
        scaled = tl.load(x + row * x_stride + start + columns, mask=mask, other=0.0).to(tl.float32) * ratio
        if FP8:
            code = to_e4m3(scaled)
        else:
            # |scaled| never exceeds the limit, so minimum and maximum change no value. They only keep the compiler from
            # fusing the multiplication above with the addition below, which would skip a rounding.
            bounded = tl.minimum(tl.maximum(scaled, -limit), limit)
            code = (bounded + _SHIFTER).to(tl.int32, bitcast=True).to(tl.int8)
        tl.store(q + row * FEATURES + start + columns, code, mask=mask)


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantizes each row of x. Returns q ([m, features], of type `dtype`) and the rows' scales (float32 [m]). `dtype`:
    int8 or float8_e4m3fn. x: [m, features], any float type, contiguous rows. Raises ValueError for another `dtype` or
    layout."""
    if x.dim() != 2 or x.stride(1) != 1 or dtype not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(
            "quantize_rows converts contiguous rows to int8 or float8_e4m3fn, "
            f"not strides {tuple(x.stride())} to {dtype}"
        )
    m, features = x.shape
    fp8 = dtype is torch.float8_e4m3fn
    q = torch.empty((m, features), dtype=torch.uint8 if fp8 else dtype, device=x.device)
    scales = torch.empty(m, dtype=torch.float32, device=x.device)
    if m:
        block, num_warps = _block(features)
        quantize_rows_kernel[(m,)](
            x, q, scales, x.stride(0), FEATURES=features, FP8=fp8, BLOCK=block, num_warps=num_warps,
            **launch_arguments(),
        )  # fmt: skip
    return q.view(dtype), scales


def _block(features: int) -> tuple[int, int]:
    """Returns the number of elements per load, and the number of warps."""
    block = min(MAX_BLOCK, triton.next_power_of_2(features))
    return block, min(16, max(4, block // 512))


def variants() -> Iterator[Variant]:
    for dtype in ("bf16", "fp16", "fp32"):
        for features in (576, 4096, 14336):
            for fp8 in (False, True):
                block, num_warps = _block(features)
                yield Variant(
                    f"quantize_rows {dtype} {features} to {'fp8' if fp8 else 'int8'}",
                    quantize_rows_kernel,
                    {"x": f"*{dtype}", "q": "*u8" if fp8 else "*i8", "scales": "*fp32", "x_stride": "i32:16"},
                    {"FEATURES": features, "FP8": fp8, "BLOCK": block},
                    num_warps,
                    num_stages=3,
                )
