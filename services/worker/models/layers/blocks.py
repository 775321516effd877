"""Layers of a decoder, by the place of their norms. See `stack.Block`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.worker.models.step import Step

if TYPE_CHECKING:
    from torch import Tensor

# Both are [num_tokens, hidden] to the same shape.
Mixer = Callable[["Tensor", Step], "Tensor"]  # attention: it sees the other tokens of the sequence
Map = Callable[["Tensor"], "Tensor"]  # of each token by itself: a norm or an MLP


class PreNormBlock:
    """Norms before attention and MLP (Xiong et al., 2020)."""

    def __init__(self, norm_1: Map, attention: Mixer, norm_2: Map, mlp: Map) -> None:
        self._norm_1, self._attention, self._norm_2, self._mlp = norm_1, attention, norm_2, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step)
        return x + self._mlp(self._norm_2(x))


class BranchNormBlock:
    """Norms after attention and MLP, inside the residual branches (Liu et al., 2022, section 3.2)."""

    def __init__(self, attention: Mixer, norm_1: Map, mlp: Map, norm_2: Map) -> None:
        self._attention, self._norm_1, self._mlp, self._norm_2 = attention, norm_1, mlp, norm_2

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._norm_1(self._attention(x, step))
        return x + self._norm_2(self._mlp(x))


class PostNormBlock:
    """Norms after attention and MLP, each of the sum with the residual stream (Vaswani et al., 2017, section 3.1)."""

    def __init__(self, norm_1: Map, attention: Mixer, norm_2: Map, mlp: Map) -> None:
        self._norm_1, self._attention, self._norm_2, self._mlp = norm_1, attention, norm_2, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self._norm_1(x + self._attention(x, step))
        return self._norm_2(x + self._mlp(x))


class SandwichBlock:
    """Norms before and after attention and MLP (Ding et al., 2021)."""

    def __init__(
        self, norm_1: Map, attention: Mixer, post_norm_1: Map, norm_2: Map, mlp: Map, post_norm_2: Map
    ) -> None:
        self._norm_1, self._attention, self._post_norm_1 = norm_1, attention, post_norm_1
        self._norm_2, self._mlp, self._post_norm_2 = norm_2, mlp, post_norm_2

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._post_norm_1(self._attention(self._norm_1(x), step))
        return x + self._post_norm_2(self._mlp(self._norm_2(x)))


class ParallelBlock:
    """Attention and MLP side by side, after one norm (Chowdhery et al., 2022, section 2)."""

    def __init__(self, norm: Map, attention: Mixer, mlp: Map) -> None:
        self._norm, self._attention, self._mlp = norm, attention, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        normed = self._norm(x)
        return x + (self._attention(normed, step) + self._mlp(normed))
