"""Symmetric quantization of each row by its largest magnitude, for activations at run time and weights at load.

With a = max(max |x|, 1e-10) of a row and Q the largest magnitude of the type (448 for float8_e4m3fn, 127 for int8):

    q = round(x · (Q / a))        scale = a / Q        x ≈ q · scale

All operations are in float32. Each division and product is rounded once, to nearest, ties to even. No |q| exceeds Q.
Because a is at least 1e-10, a row of zeros has a finite ratio Q / a. A kernel that performs these operations in this
order gets the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-10
FP8_MAX = 448.0
INT8_MAX = 127.0


def quantize_rows_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes x [..., features] of any float type. Returns float8_e4m3fn [..., features] and float32 scales [...]."""
    scaled, scales = _scale_rows(x, FP8_MAX)
    return scaled.to(torch.float8_e4m3fn), scales


def quantize_rows_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes x [..., features] of any float type. Returns int8 [..., features] and float32 scales [...]."""
    scaled, scales = _scale_rows(x, INT8_MAX)
    return scaled.round().to(torch.int8), scales


def _scale_rows(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    wide = x.float()
    amax = wide.abs().amax(-1, keepdim=True).clamp(min=FLOOR)
    # A tensor, because torch rounds twice if either operand of a division is a Python number: it computes number /
    # tensor, and on a GPU tensor / number, by a reciprocal and a product.
    limit = torch.full_like(amax, largest)
    return wide * (limit / amax), (amax / limit).squeeze(-1)
