"""Layers of decoders and encoders, by the place of their norms. See `stack.Block` and `encoder_stack.EncoderBlock`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

# What attention is told about the batch: a decoder's `Step`, or an encoder's `WholeSequences`.
BatchT = TypeVar("BatchT")
# All are [num_tokens, hidden] to the same shape.
Mixer = Callable[["Tensor", BatchT], "Tensor"]  # attention: it sees the other tokens of the sequence
Map = Callable[["Tensor"], "Tensor"]  # of each token by itself: a norm or an MLP
SumMap = Callable[["Tensor", "Tensor"], "Tensor"]  # the norm of the sum of two inputs


class PreNormBlock(Generic[BatchT]):
    """Norms before attention and MLP (Xiong et al., 2020)."""

    def __init__(self, norm_1: Map, attention: Mixer[BatchT], norm_2: Map, mlp: Map) -> None:
        self._norm_1, self._attention, self._norm_2, self._mlp = norm_1, attention, norm_2, mlp

    def __call__(self, x: Tensor, batch: BatchT) -> Tensor:
        x = x + self._attention(self._norm_1(x), batch)
        return x + self._mlp(self._norm_2(x))


class BranchNormBlock(Generic[BatchT]):
    """Norms after attention and MLP, inside the residual branches (Liu et al., 2022, section 3.2)."""

    def __init__(self, attention: Mixer[BatchT], norm_1: Map, mlp: Map, norm_2: Map) -> None:
        self._attention, self._norm_1, self._mlp, self._norm_2 = attention, norm_1, mlp, norm_2

    def __call__(self, x: Tensor, batch: BatchT) -> Tensor:
        x = x + self._norm_1(self._attention(x, batch))
        return x + self._norm_2(self._mlp(x))


class PostNormBlock(Generic[BatchT]):
    """Norms after attention and MLP, each of the sum with the residual stream (Vaswani et al., 2017, section 3.1)."""

    def __init__(self, attention: Mixer[BatchT], norm_1: SumMap, mlp: Map, norm_2: SumMap) -> None:
        self._attention, self._norm_1, self._mlp, self._norm_2 = attention, norm_1, mlp, norm_2

    def __call__(self, x: Tensor, batch: BatchT) -> Tensor:
        x = self._norm_1(self._attention(x, batch), x)
        return self._norm_2(self._mlp(x), x)


class SandwichBlock(Generic[BatchT]):
    """Norms before and after attention and MLP (Ding et al., 2021)."""

    def __init__(
        self, norm_1: Map, attention: Mixer[BatchT], post_norm_1: Map, norm_2: Map, mlp: Map, post_norm_2: Map
    ) -> None:
        self._norm_1, self._attention, self._post_norm_1 = norm_1, attention, post_norm_1
        self._norm_2, self._mlp, self._post_norm_2 = norm_2, mlp, post_norm_2

    def __call__(self, x: Tensor, batch: BatchT) -> Tensor:
        x = x + self._post_norm_1(self._attention(self._norm_1(x), batch))
        return x + self._post_norm_2(self._mlp(self._norm_2(x)))


class ParallelBlock(Generic[BatchT]):
    """Attention and MLP side by side, after one norm (Chowdhery et al., 2022, section 2)."""

    def __init__(self, norm: Map, attention: Mixer[BatchT], mlp: Map) -> None:
        self._norm, self._attention, self._mlp = norm, attention, mlp

    def __call__(self, x: Tensor, batch: BatchT) -> Tensor:
        normed = self._norm(x)
        return x + (self._attention(normed, batch) + self._mlp(normed))
