"""Quantizes rows of activations to 8 bits by their largest magnitude. The results are bitwise those of `kinds/rows.py`.

    a = max(max |x|, 1e-10)      q = round(x · (Q / a))      scale = a / Q      Q = 448 (fp8 e4m3) or 127 (int8)

x [m, features] -> q [m, features] and scale, float32 [m]. Divisions round as in IEEE 754. On every GPU, values are
converted to fp8 with integer arithmetic (`fp8.py`). The instruction of newer GPUs would give the same bits and save no
time, because the kernel is bound by memory. If x has a NaN, the scale of its row is NaN, so that all products with the
row are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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


class QuantizedRows(NamedTuple):
    values: Tensor  # int8 or float8_e4m3fn [m, features]
    scales: Tensor  # float32 [m]: row r of the activations is about values[r] · scales[r]


@triton.jit
def row_scales(greatest, num_nans, FP8: tl.constexpr):
    """Returns the factor that makes codes of a row, and the row's scale. greatest: the largest magnitude in the row,
    NaN not counted; num_nans: 0 if it has none."""
    limit: tl.constexpr = _FP8_MAX if FP8 else _INT8_MAX
    amax = tl.where(num_nans > 0, float("nan"), tl.maximum(greatest, _FLOOR))
    return tl.div_rn(limit + 0.0 * amax, amax), tl.div_rn(amax, limit + 0.0 * amax)


@triton.jit
def to_codes(scaled, FP8: tl.constexpr):
    """Rounds float32 values within the type's limits to int8, or to the bytes of fp8."""
    if FP8:
        code = to_e4m3(scaled)
    else:
        # |scaled| never exceeds the limit, so minimum and maximum change no value. They only keep the compiler from
        # fusing the caller's multiplication with the addition below, which would skip a rounding.
        bounded = tl.minimum(tl.maximum(scaled, -_INT8_MAX), _INT8_MAX)
        code = (bounded + _SHIFTER).to(tl.int32, bitcast=True).to(tl.int8)
    return code


@triton.jit
def quantize_whole_rows(x, FP8: tl.constexpr):
    """Quantizes x, float32 [rows, features]. Returns codes [rows, features] and scales [rows]."""
    ratio, scales = row_scales(tl.max(tl.abs(x), 1), tl.max((x != x).to(tl.int32), 1), FP8)
    return to_codes(x * ratio[:, None], FP8), scales


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
    ratio, scale = row_scales(tl.max(greatest), tl.max((greatest != greatest).to(tl.int32)), FP8)
    tl.store(scales + row, scale)
    for start in range(0, FEATURES, BLOCK):
        mask = start + columns < FEATURES
        scaled = tl.load(x + row * x_stride + start + columns, mask=mask, other=0.0).to(tl.float32) * ratio
        tl.store(q + row * FEATURES + start + columns, to_codes(scaled, FP8), mask=mask)


def quantize_rows(x: Tensor, dtype: torch.dtype) -> QuantizedRows:
    """Quantizes each row of x [m, features], any float type, contiguous rows. `dtype`: int8 or float8_e4m3fn. Raises
    ValueError for another `dtype` or layout."""
    if x.dim() != 2 or x.stride(1) != 1 or dtype not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(
            "quantize_rows converts contiguous rows to int8 or float8_e4m3fn, "
            f"not strides {tuple(x.stride())} to {dtype}"
        )
    m, features = x.shape
    result = empty_rows(m, features, dtype, x.device)
    if m:
        block, num_warps = _block(features)
        quantize_rows_kernel[(m,)](
            x, as_bytes(result.values), result.scales, x.stride(0), FEATURES=features, FP8=dtype is torch.float8_e4m3fn,
            BLOCK=block, num_warps=num_warps, **launch_arguments(),
        )  # fmt: skip
    return result


def empty_rows(m: int, features: int, dtype: torch.dtype, device: torch.device) -> QuantizedRows:
    """Returns memory for rows of `dtype`, which a kernel is to fill."""
    return QuantizedRows(
        torch.empty((m, features), dtype=dtype, device=device), torch.empty(m, dtype=torch.float32, device=device)
    )


def as_bytes(values: Tensor) -> Tensor:
    """Returns the values as the kernels store them: int8, or the bytes of fp8 as uint8."""
    return values if values.dtype is torch.int8 else values.view(torch.uint8)


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
