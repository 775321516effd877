"""Inputs, oracles and guards that the kernels' tests share."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    """Standard normal, in `dtype`."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def assert_rounded_once(got: Tensor, expected: Tensor, slack: float = 1e-6, absolute: float = 3e-7) -> None:
    """`got` is `expected`, float64, computed in float32 and rounded to its type: half a unit in the last place, and a
    little for float32's own errors. A whole unit for bfloat16, which Triton's interpreter rounds by truncation."""
    units = {torch.float32: 0.0, torch.float16: 0.5, torch.bfloat16: 1.0}[got.dtype]
    relative = units * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=relative + slack, atol=absolute)


def guarded(*shape: int, dtype: torch.dtype, device: torch.device, margin: int = 64) -> tuple[Tensor, Tensor]:
    """A tensor of NaN inside a longer one of NaN; and that one, to look beyond the tensor's ends."""
    size = torch.Size(shape).numel()
    whole = torch.full((size + 2 * margin,), torch.nan, dtype=dtype, device=device)
    return whole[margin : margin + size].view(shape), whole


def assert_guards_intact(whole: Tensor, margin: int = 64) -> None:
    assert whole[:margin].isnan().all()
    assert whole[-margin:].isnan().all()
