"""From hidden states to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import Linear


class TiedHead:
    """The embeddings as the matrix of the head, which has a bias of its own. See `interface.Linear`."""

    def __init__(self, tokens: Linear, bias: Tensor) -> None:
        """`bias`: [vocab]"""
        self._tokens, self._bias = tokens, bias

    def __call__(self, x: Tensor) -> Tensor:
        return self._tokens(x) + self._bias
