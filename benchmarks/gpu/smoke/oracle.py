"""How far a kernel's result is from float64's."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Relative to the whole result: some roundings of each type. float32 products of GPUs may use TF32's ten bits.
LIMITS = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 3e-3}


def worst_error(got: Tensor, exact: Tensor, limit: float | None = None) -> float:
    """|got - exact| / |exact| over all elements (Frobenius norms). Raises AssertionError above `limit`, which is by
    default that of got's type, and for results that are no numbers."""
    difference = (got.double() - exact.double()).norm()
    error = float(difference / exact.double().norm().clamp_min(1e-30))
    limit = LIMITS[got.dtype] if limit is None else limit
    if not error <= limit:
        raise AssertionError(f"the relative error is {error:.2e}; at most {limit:.1e} is expected")
    return error


def same(got: Tensor, expected: Tensor) -> float:
    """Raises AssertionError unless both hold the same values."""
    wrong = int((got != expected).sum())
    if wrong:
        raise AssertionError(f"{wrong} of {expected.numel()} values differ")
    return 0.0


def draw(*shape: int, dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> Tensor:
    """Standard normal times `scale`."""
    return torch.randn(shape, device=device, dtype=torch.float32).mul_(scale).to(dtype)
