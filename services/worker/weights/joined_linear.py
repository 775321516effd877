"""Several projections of the same input. Their weights cannot be joined into one matrix, because the weights' formats
differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.ops import Linear


class JoinedLinear:
    """Runs each projection and concatenates the outputs. See `interface.Linear`."""

    def __init__(self, linears: Sequence[Linear]) -> None:
        self._linears = linears

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([linear(x) for linear in self._linears], dim=-1)
