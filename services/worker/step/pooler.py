"""Pools the hidden states of a sequence's tokens into one vector, chunk by chunk.

Mean pooling keeps a running sum per slot on the device between chunks, so a chunk can be launched before the previous
chunk has ended. The pooler depends on slots and hidden states, not on the model: a `PooledOutput` makes embeddings or
scores of the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.errors import PlanError
from services.worker.ops import Ops
from services.worker.plan import I64, Batch, PoolingSequence
from services.worker.pooling import PoolingConfig, PoolingKind, PoolingParams, VectorParams
from services.worker.step.pooled_output import PooledOutput
from services.worker.transfers import upload


@dataclass(frozen=True, slots=True)
class Pooled:
    """Results of a step for the rows that are pooled."""

    wire_ids: I64  # [n], of the sequences that are complete
    params: tuple[VectorParams, ...]  # [n], copies, because a slot can have a new owner when the vectors arrive
    counts: I64  # [n], number of tokens summed in each vector; 1 unless mean pooling
    vectors: Tensor  # float32 [n, size], of `PooledOutput.compute`, on the device
    # Slots [m], and their sums of hidden states, including this step's tokens, float32 [m, hidden], on the device. None
    # if pooling needs no sums.
    sums: tuple[Tensor, Tensor] | None

    def tensors(self) -> list[Tensor]:
        return [self.vectors]


class Pooler:
    """Pools the hidden states of the sequences in slots. Not thread-safe: only the step thread calls it."""

    def __init__(
        self, config: PoolingConfig, ops: Ops, max_num_seqs: int, hidden_size: int, output: PooledOutput
    ) -> None:
        self.config = config
        self.output = output
        self._ops = ops
        self._params: list[VectorParams] = [PoolingParams()] * max_num_seqs
        self._sums: Tensor | None = None  # float32 [max_num_seqs, hidden], only for mean pooling
        if config.kind is PoolingKind.MEAN:
            self._sums = torch.zeros(max_num_seqs, hidden_size, device=ops.device)

    def admit(self, sequence: PoolingSequence) -> str | None:
        """Assigns the slot `sequence.slot` to the sequence from the next step on. Returns None, or a sentence for the
        client that says why the model cannot pool as requested. Raises PlanError if pooling needs the hidden states of
        all tokens, but the sequence starts with computed tokens, whose hidden states are gone."""
        if self.config.needs_all_tokens and sequence.num_computed_tokens:
            raise PlanError(f"sequence {sequence.wire_id} is pooled over all tokens, but some are computed already")
        self._params[sequence.slot] = sequence.pooling
        if self._sums is not None:
            self._sums[sequence.slot] = 0
        return self.output.check(sequence.pooling)

    def tokens(self, batch: Batch) -> I64:
        """Returns the indices of the tokens whose hidden states `pool` needs, in the order that `pool` expects."""
        rows, starts = batch.pooled_rows, batch.query_starts.astype(np.int64)
        if self._sums is not None:
            return np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows] or [np.zeros(0, np.int64)])
        rows = rows[batch.ends[rows]]
        return starts[rows] if self.config.kind is PoolingKind.CLS else starts[rows + 1] - 1

    def pool(self, hidden: Tensor, batch: Batch) -> Pooled:
        """Returns the vectors of the sequences that end in this step, and the new running sums. `hidden` [n, hidden]:
        the hidden states of the n tokens that `tokens` returns. Does not change the stored sums, so that a step that
        runs out of memory can be repeated with fewer rows; `keep` stores the new sums."""
        rows = batch.pooled_rows
        ends = batch.ends[rows]
        slots, complete = batch.slots[rows], rows[ends]
        counts = np.ones(len(complete), np.int64)
        sums = None
        if self._sums is None:
            # Copy the values, because the next forward pass can overwrite `hidden`.
            vectors = hidden.to(torch.float32, copy=True)
        else:
            starts = np.concatenate(([0], np.cumsum(np.diff(batch.query_starts)[rows]))).astype(np.int64)
            at = upload(slots, self._ops.device)
            totals = self._sums[at]
            self._ops.add_segments(totals, hidden, starts)
            sums, vectors = (at, totals), totals[upload(np.flatnonzero(ends), self._ops.device)]
            counts = batch.positions[batch.query_starts[complete + 1] - 1].astype(np.int64) + 1
        params = tuple(self._params[slot] for slot in batch.slots[complete].tolist())
        return Pooled(batch.wire_ids[complete], params, counts, self.output.compute(vectors, counts), sums)

    def keep(self, pooled: Pooled) -> None:
        """Stores the new running sums. Call it only when the step cannot be repeated any more, because a repeated step
        adds to the old sums."""
        if pooled.sums is not None:
            assert self._sums is not None
            at, totals = pooled.sums
            self._sums[at] = totals
