"""Blocks: attention, then an MLP, with a norm each. See `Block` in stack.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.worker.models.layers.attention import Attention
from services.worker.models.step import Step

if TYPE_CHECKING:
    from torch import Tensor

    Part = Callable[[Tensor], Tensor]  # [num_tokens, hidden] -> [num_tokens, hidden]


class PreNormBlock:
    """Norms before attention and MLP (Radford et al., 2019, section 2.3)."""

    def __init__(self, norm_1: Part, attention: Attention, norm_2: Part, mlp: Part) -> None:
        self._norm_1, self._attention, self._norm_2, self._mlp = norm_1, attention, norm_2, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step)
        return x + self._mlp(self._norm_2(x))


class PostNormBlock:
    """Norms after attention and MLP, each of the sum with the residual stream (Vaswani et al., 2017, section 3.1)."""

    def __init__(self, norm_1: Part, attention: Attention, norm_2: Part, mlp: Part) -> None:
        self._norm_1, self._attention, self._norm_2, self._mlp = norm_1, attention, norm_2, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self._norm_1(x + self._attention(x, step))
        return self._norm_2(x + self._mlp(x))
