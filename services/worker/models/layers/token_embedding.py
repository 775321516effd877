"""The first layer of a decoder: from tokens to vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.models.step import Step

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import Linear, Ops


class TokenEmbedding:
    """Looks up the embeddings of token ids. Tokens whose embeddings the step gives have these instead."""

    def __init__(self, ops: Ops, tokens: Linear, scale: Tensor | float | None = None) -> None:
        """`tokens`: one row per id; `scale`: factor of what is looked up. Given embeddings are scaled already, as
        transformers' `inputs_embeds` are. A factor that transformers applies to both belongs in `Stack.embed`."""
        self._ops, self._tokens, self._scale = ops, tokens, scale

    def __call__(self, step: Step) -> Tensor:
        """Returns [num_tokens, size of an embedding]."""
        x = self._ops.embedding(step.token_ids, self._tokens)
        x = x if self._scale is None else x * self._scale
        return x if step.embeddings is None else step.embeddings.put_into(x)
