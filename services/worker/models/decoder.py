"""A decoder that is ready to run: its configuration and its loaded network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.models.bare import BareDecoder
from services.worker.models.config import ModelConfig
from services.worker.models.network import Network
from services.worker.models.step import InputEmbeddings, Step

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import AttentionBatch, KVPages


@dataclass(frozen=True, slots=True)
class Decoder:
    """Keeps no state between calls: the caller passes the KV pages."""

    config: ModelConfig
    network: Network

    def hidden_states(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        pages: Sequence[KVPages],
        wanted: Tensor,
        embeddings: InputEmbeddings | None = None,
    ) -> Tensor:
        """Runs one step: writes the keys and values of all tokens to the pages, and returns the final hidden states of
        the tokens at the indices `wanted`, [n, hidden] in the operations' type.

        token_ids: int64 [num_tokens]; pages: one per layer with attention; wanted: int64 [n]; embeddings: see
        `Step`.
        """
        return self.network.hidden_states(Step(token_ids, batch, pages, wanted, embeddings))

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Returns logits [n, vocab] of hidden states [n, hidden], both in the operations' type."""
        return self.network.logits(hidden_states)

    def scores(self, hidden_states: Tensor) -> Tensor:
        """Returns a classifier's outputs [n, num_labels] for hidden states [n, hidden], both in the operations'
        type."""
        assert isinstance(self.network, BareDecoder)
        return self.network.scores(hidden_states)
