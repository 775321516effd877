"""The frame of a decoder: it embeds the tokens, runs its blocks one after the other, and norms the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from services.worker.models.layers.token_embedding import TokenEmbedding
from services.worker.models.step import Step

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import Linear, Ops

# One layer, [num_tokens, hidden] to the same shape. It writes keys and values to the step's pages.
Block = Callable[["Tensor", Step], "Tensor"]


class Stack:
    """See `Network`. An architecture that does more at either end overrides `embed` or `logits`."""

    def __init__(
        self,
        ops: Ops,
        tokens: Linear,
        blocks: Sequence[Block],
        norm: Callable[[Tensor], Tensor],
        head: Linear,
        embedding_scale: Tensor | float | None = None,
    ) -> None:
        """`tokens` and `embedding_scale`: see `TokenEmbedding`; `norm`: of the last block's output; `head`: from final
        hidden states to logits."""
        self._ops, self._blocks, self._norm, self._head = ops, blocks, norm, head
        self._embedding = TokenEmbedding(ops, tokens, embedding_scale)

    def embed(self, step: Step) -> Tensor:
        """Returns the input of the first block, [num_tokens, hidden]."""
        return self._embedding(step)

    def hidden_states(self, step: Step) -> Tensor:
        """See `Network`."""
        x = self.embed(step)
        for block in self._blocks:
            x = block(x, step)
        return self._norm(x[step.wanted])

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        return self._head(hidden_states)
