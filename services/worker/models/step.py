"""Inputs of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import AttentionBatch, KVPages


@dataclass(frozen=True, slots=True)
class InputEmbeddings:
    """Embeddings that some tokens of a step have in place of those of their ids, such as the parts of an image. They
    are what transformers takes as `inputs_embeds`."""

    at: Tensor  # int64 [n], distinct indices into the step's tokens
    rows: Tensor  # [n, size of an embedding] in the operations' type

    def put_into(self, embeddings: Tensor) -> Tensor:
        """Overwrites rows of `embeddings` [num_tokens, size of an embedding], and returns it."""
        return embeddings.index_copy_(0, self.at, self.rows)


@dataclass(frozen=True, slots=True)
class Step:
    """Inputs of one forward pass."""

    token_ids: Tensor  # int64 [num_tokens]
    batch: AttentionBatch
    pages: Sequence[KVPages]  # of each layer with attention, in the order of `Build.attention`
    wanted: Tensor  # int64 [n], the tokens whose final hidden states are wanted
    embeddings: InputEmbeddings | None = None  # None: all tokens have the embeddings of their ids
