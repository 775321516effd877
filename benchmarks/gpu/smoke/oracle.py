"""Compares a kernel's result with that in float64."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Limits of the relative error, by type: a few roundings. float32 products on GPUs may use TF32 with ten bits.
LIMITS = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 3e-3}


def worst_error(got: Tensor, exact: Tensor, limit: float | None = None) -> float:
    """Returns |got - exact| / |exact| over all elements (Frobenius norms).

    Raises AssertionError if it exceeds `limit` (default: the limit of got's type) or is NaN.
    """
    difference = (got.double() - exact.double()).norm()
    error = float(difference / exact.double().norm().clamp_min(1e-30))
    limit = LIMITS[got.dtype] if limit is None else limit
    if not error <= limit:
        raise AssertionError(f"the relative error is {error:.2e}; the limit is {limit:.1e}")
    return error


def same(got: Tensor, expected: Tensor) -> float:
    """Raises AssertionError unless both tensors have the same values."""
    wrong = int((got != expected).sum())
    if wrong:
        raise AssertionError(f"{wrong} of {expected.numel()} values differ")
    return 0.0


def draw(*shape: int, dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> Tensor:
    """Returns random values: standard normal times `scale`."""
    return torch.randn(shape, device=device, dtype=torch.float32).mul_(scale).to(dtype)
