"""Inputs of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import AttentionBatch, KVPages


@dataclass(frozen=True, slots=True)
class Step:
    """Inputs of one forward pass."""

    token_ids: Tensor  # int64 [num_tokens]
    batch: AttentionBatch
    pages: Sequence[KVPages]  # of each layer with attention, in the order of `Build.attention`
    wanted: Tensor  # int64 [n], the tokens whose final hidden states are wanted
