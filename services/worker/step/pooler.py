"""Gathers each pooled sequence's vector from the hidden states of its tokens, chunk by chunk.

What is kept between chunks is a running sum per slot, on the device, so plans need not wait for one another. The rest
(dividing, cutting, normalizing) is arithmetic of one row at a time, on the host once the sums have arrived. The pooler
knows slots and hidden states, and must not know which model they are of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.errors import PlanError
from services.worker.ops import Ops, upload
from services.worker.plan import F32, I64, Batch, PoolingSequence
from services.worker.pooling import PoolingConfig, PoolingKind, PoolingParams


@dataclass(frozen=True, slots=True)
class Pooled:
    """What a step has made of its pooled rows."""

    wire_ids: I64  # [n], of the sequences that are complete
    params: tuple[PoolingParams, ...]  # n, what they want: their slots may be another's when the vectors arrive
    counts: I64  # [n], tokens that each vector is the sum of
    vectors: Tensor  # float32 [n, hidden], on the device
    # [m] and float32 [m, hidden] on the device: slots and their sums with this step's tokens; None where none are kept.
    sums: tuple[Tensor, Tensor] | None

    def tensors(self) -> list[Tensor]:
        return [self.vectors]


class Pooler:
    """Not thread-safe: one step thread owns it."""

    def __init__(self, config: PoolingConfig, ops: Ops, max_num_seqs: int, hidden_size: int) -> None:
        self.config = config
        self._ops = ops
        self._size = hidden_size
        self._params: list[PoolingParams] = [PoolingParams()] * max_num_seqs
        self._sums: Tensor | None = None  # float32 [max_num_seqs, hidden], of a mean
        if config.kind is PoolingKind.MEAN:
            self._sums = torch.zeros(max_num_seqs, hidden_size, device=ops.device)

    def admit(self, sequence: PoolingSequence) -> str | None:
        """The slot is the sequence's from the next step on. Returns a sentence for its client where it wants what the
        model cannot do. Raises PlanError for one that comes half computed and would be pooled in part."""
        if self.config.needs_all_tokens and sequence.num_computed_tokens:
            raise PlanError(f"sequence {sequence.wire_id} is pooled over all of its tokens, but comes half computed")
        self._params[sequence.slot] = sequence.pooling
        if self._sums is not None:
            self._sums[sequence.slot] = 0
        return sequence.pooling.check(self._size, self.config)

    def tokens(self, batch: Batch) -> I64:
        """Indices into the batch's tokens: those whose hidden states `pool` wants, in its order."""
        rows, starts = batch.pooled_rows, batch.query_starts.astype(np.int64)
        if self._sums is not None:
            return np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows] or [np.zeros(0, np.int64)])
        rows = rows[batch.ends[rows]]
        return starts[rows] if self.config.kind is PoolingKind.CLS else starts[rows + 1] - 1

    def pool(self, hidden: Tensor, batch: Batch) -> Pooled:
        """hidden [len(tokens(batch)), hidden]. Changes nothing that is kept, so that a step may be repeated with fewer
        rows where memory does not suffice."""
        rows = batch.pooled_rows
        ends = batch.ends[rows]
        slots, complete = batch.slots[rows], rows[ends]
        counts = np.ones(len(complete), np.int64)
        sums = None
        if self._sums is None:
            # A copy: the next run may write where this one left them.
            vectors = hidden.to(torch.float32, copy=True)
        else:
            starts = np.concatenate(([0], np.cumsum(np.diff(batch.query_starts)[rows]))).astype(np.int64)
            at = upload(slots, self._ops.device)
            totals = self._sums[at]
            self._ops.add_segments(totals, hidden, starts)
            sums, vectors = (at, totals), totals[upload(np.flatnonzero(ends), self._ops.device)]
            counts = batch.positions[batch.query_starts[complete + 1] - 1].astype(np.int64) + 1
        params = tuple(self._params[slot] for slot in batch.slots[complete].tolist())
        return Pooled(batch.wire_ids[complete], params, counts, vectors, sums)

    def keep(self, pooled: Pooled) -> None:
        """The step will not be repeated."""
        if pooled.sums is not None:
            assert self._sums is not None
            at, totals = pooled.sums
            self._sums[at] = totals

    def finish(self, vector: F32, count: int, params: PoolingParams) -> F32:
        """float32 [hidden], the sum over `count` tokens -> the embedding. Row by row and in float64, so that no bit
        depends on what else was pooled."""
        wide: NDArray[np.float64] = vector.astype(np.float64) / count
        if params.dimensions is not None:
            wide = wide[: params.dimensions]
        if self.config.normalize if params.normalize is None else params.normalize:
            # As torch's normalize: the zero vector stays zero.
            wide = wide / max(float(np.sqrt(np.add.reduce(wide * wide))), 1e-12)
        return wide.astype(np.float32)
