"""The frame of an encoder: it embeds the tokens, and runs its blocks one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix
from services.worker.models.encoder_network import EncoderStep
from services.worker.models.layers.norms import LayerNorm

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import WholeSequences

# One layer, [num_tokens, hidden] to the same shape.
EncoderBlock = Callable[["Tensor", "WholeSequences"], "Tensor"]


class Embeddings:
    """norm(token + position + token type): the sum of those that the architecture has."""

    def __init__(
        self,
        build: Build,
        words: Matrix,
        norm: LayerNorm,
        types: Matrix | None = None,
        positions: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._ops, self._norm, self._positions = build.ops, norm, positions
        self._words = build.linear(words)
        self._types = None if types is None else build.linear(types)
        self._last_type = 0 if types is None else types.outputs - 1

    def __call__(self, step: EncoderStep) -> Tensor:
        """Returns [num_tokens, hidden]."""
        x = self._ops.embedding(step.token_ids, self._words)
        if self._types is not None:
            x = x + self._ops.embedding(step.token_types.clamp(max=self._last_type), self._types)
        if self._positions is not None:
            x = x + self._positions(step.batch.positions)
        return self._norm(x)


class EncoderStack:
    """See `EncoderNetwork`."""

    def __init__(
        self,
        embeddings: Embeddings,
        blocks: Sequence[EncoderBlock],
        norm: Callable[[Tensor], Tensor] | None = None,
        classifier: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`norm`: of the last block's outputs; `classifier`: from pooled hidden states to its outputs."""
        self._embeddings, self._blocks, self._norm, self._classifier = embeddings, blocks, norm, classifier

    def hidden_states(self, step: EncoderStep) -> Tensor:
        """See `EncoderNetwork`."""
        x = self._embeddings(step)
        for block in self._blocks:
            x = block(x, step.batch)
        return x if self._norm is None else self._norm(x)

    def scores(self, pooled: Tensor) -> Tensor:
        """See `EncoderNetwork`."""
        assert self._classifier is not None
        return self._classifier(pooled)
