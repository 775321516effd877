"""Embeddings of absolute positions. Each is int32 [num_tokens] -> [num_tokens, hidden]. The positions of padding tokens
can be anything; they are clamped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from services.worker.models.build import Build

if TYPE_CHECKING:
    from torch import Tensor


class PositionTable:
    """One learned vector per position."""

    def __init__(self, build: Build, name: str, num_positions: int, hidden_size: int, offset: int = 0) -> None:
        """`offset`: row of position 0, so the number of rows before it."""
        self._offset, self._last = offset, num_positions - 1
        # No matrix, so that it is never quantized.
        self._table = build.tensor(f"{name}.weight", (num_positions + offset, hidden_size))

    def __call__(self, positions: Tensor) -> Tensor:
        return self._table[positions.clamp(0, self._last).long() + self._offset]


class Sinusoids:
    """Sines and cosines of the position at frequencies from 1 to 1 / 10,000 (Vaswani et al., 2017, section 3.5). The
    sines are the first half, as in tensor2tensor."""

    def __init__(self, build: Build, hidden_size: int, offset: int = 0) -> None:
        """`hidden_size`: even, at least 4; `offset`: is added to each position."""
        self._table = build.table(lambda num_positions: self._rows(num_positions, hidden_size // 2, offset))

    def __call__(self, positions: Tensor) -> Tensor:
        return self._table[positions.clamp(0, self._table.shape[0] - 1).long()]

    @staticmethod
    def _rows(num_positions: int, half: int, offset: int) -> Tensor:
        """Returns float32 [num_positions, 2 * half]."""
        import torch

        # Computed with transformers' order of operations, so that the angles equal transformers' exactly.
        frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10_000) / (half - 1)))
        angles = torch.arange(offset, offset + num_positions, dtype=torch.float32)[:, None] * frequencies
        return torch.cat((angles.sin(), angles.cos()), dim=-1)
