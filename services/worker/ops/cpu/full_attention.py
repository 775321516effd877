"""An encoder's attention, computed by the kernel for paged attention, which is batch-invariant.

Keys and values are first written to pages, which the kernel then reads.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, AttentionForm, KVPages, Ops, Rotation, WholeSequences

BLOCK_SIZE = 64  # keys that the kernel processes at a time


class FullAttention:
    """Computes full attention. Keeps its pages between calls, and each call overwrites them. The pages grow to the size
    of the largest step."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._pages: KVPages | None = None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, batch: WholeSequences, form: AttentionForm, rotation: Rotation | None
    ) -> Tensor:
        """See `interface.Ops.full_attention`."""
        lengths = np.array(batch.lengths)
        num_blocks = -(-lengths // BLOCK_SIZE)  # [num_sequences]
        tables = np.zeros((len(lengths), num_blocks.max()), np.int32)
        tables[np.arange(tables.shape[1]) < num_blocks[:, None]] = np.arange(num_blocks.sum())
        own = AttentionBatch(batch.positions, batch.query_starts, torch.from_numpy(tables))
        pages = self._room(int(num_blocks.sum()), k.shape[1], k.shape[2])
        if rotation is None:
            self._ops.write_kv(k, v, own, pages)
        else:
            self._ops.rope_and_write_kv(q, k, v, rotation, own, pages)
        return self._ops.paged_attention(q, own, pages, form)

    def _room(self, num_blocks: int, heads: int, head_dim: int) -> KVPages:
        shape = (heads, BLOCK_SIZE, head_dim)
        if self._pages is None or self._pages.keys.shape[1:] != shape or len(self._pages.keys) < num_blocks:
            # The content of slots that were never written does not matter: the kernel does not read it, or masks its
            # scores.
            self._pages = KVPages(torch.zeros(num_blocks, *shape), torch.zeros(num_blocks, *shape))
        return self._pages
