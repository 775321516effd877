"""Learned embeddings of absolute positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix

if TYPE_CHECKING:
    from torch import Tensor


class PositionTable:
    """One learned vector per position."""

    def __init__(self, build: Build, name: str, num_positions: int, hidden_size: int, offset: int = 0) -> None:
        """`offset`: row of position 0; the table has so many rows more than positions."""
        self._ops, self._offset, self._last = build.ops, offset, num_positions - 1
        self._table = build.linear(Matrix(name, num_positions + offset, hidden_size))

    def __call__(self, positions: Tensor) -> Tensor:
        """int32 [num_tokens] -> [num_tokens, hidden]. The positions of padding tokens can be anything; they are
        clamped."""
        return self._ops.embedding(positions.clamp(0, self._last).long() + self._offset, self._table)
