"""The forward pass on a GPU. Inputs lie at fixed addresses; decode-only steps replay CUDA graphs, and other steps
launch kernels.

A graph is recorded for a *bucket*, a number of tokens. The graph serves every step with at most that many sequences of
one token each. The bucket's unused tokens belong to no row: their KV slot is -1, so nothing is written to pages for
them, attention skips them, and their results are ignored. Everything that differs between batches is data in
the inputs; launch sizes depend only on the bucket. The output layer and the sampler run outside the graph, on the
actual number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.models import Decoder, InputEmbeddings
from services.worker.ops import AttentionBatch, AttentionWork, KVPages, Ops
from services.worker.ops.triton import fill_last_tokens, launches_of, map_slots
from services.worker.plan import I32, I64, Batch, Limits
from services.worker.step.clock import StepClock
from services.worker.step.graphs import Recorder, Replay, bucket_sizes
from services.worker.step.inputs import SlotTables, StepInputs


class DeviceForwardPass:
    """See `ForwardPass`."""

    def __init__(self, decoder: Decoder, ops: Ops, pages: Sequence[KVPages], limits: Limits, clock: StepClock) -> None:
        self._clock = clock
        self._decoder, self._ops, self._pages, self._limits = decoder, ops, pages, limits
        self._inputs = StepInputs(ops, limits)
        self._tables = SlotTables(limits, ops.device)
        self._slots = torch.empty(limits.max_num_batched_tokens, dtype=torch.int64, device=ops.device)
        self.buckets = bucket_sizes(min(limits.max_num_seqs, limits.max_num_batched_tokens))
        self._replays: dict[int, Replay] = {}
        # [largest bucket, hidden]: all graphs write their result here.
        self._hidden: Tensor | None = None

    def reset(self) -> None:
        """See `ForwardPass`. Keeps the graphs, because the tensors that they read and write stay the same."""
        self._tables.reset()

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """See `ForwardPass`. Records the largest bucket first, so that smaller buckets reuse its memory. The recording
        runs steps, but these steps have no tokens, so they write nothing to the pages."""
        self._inputs.clear()
        config = self._decoder.config
        if self._hidden is None:
            shape = (self.buckets[-1], config.hidden_size)
            self._hidden = torch.zeros(shape, dtype=self._ops.dtype, device=self._ops.device)
        for size in sorted(buckets, reverse=True):
            with launches_of(size):
                self._replays[size] = recorder.record(self._decode(size, self._hidden[:size], last_tokens))

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor, wanted: I64) -> Tensor:
        """See `ForwardPass`."""
        self._tables.send(batch.wire_ids, batch.slots, batch.num_blocks, block_tables)
        work, embeddings = self._inputs.send(batch, wanted)
        bucket = self._bucket(batch)
        self._clock.begin()
        if bucket is None:
            return self._launch(len(batch.token_ids), len(wanted), work, last_tokens, embeddings)
        self._replays[bucket]()
        assert self._hidden is not None
        return self._hidden[: len(wanted)]

    def _bucket(self, batch: Batch) -> int | None:
        """Returns the smallest recorded bucket that holds the step. Returns None if no recorded graph can run the step:
        its kernels must then be launched one by one."""
        if len(batch.token_ids) != len(batch.slots) or batch.embeddings is not None:
            return None
        return min((size for size in self._replays if size >= len(batch.slots)), default=None)

    def _decode(self, size: int, hidden: Tensor, last_tokens: Tensor) -> Replay:
        bounds = self._inputs.plan_decodes(size)
        work = AttentionWork(self._inputs.work_items, bounds.num_decodes, bounds.num_tiles)

        def run() -> None:
            hidden.copy_(self._launch(size, size, work, last_tokens))

        return run

    def _launch(
        self,
        num_tokens: int,
        num_wanted: int,
        work: AttentionWork,
        last_tokens: Tensor,
        embeddings: InputEmbeddings | None = None,
    ) -> Tensor:
        """Runs the model on the inputs that were last sent to the device. Returns the hidden states [num_wanted,
        hidden] of the tokens `inputs.wanted[:num_wanted]`."""
        inputs = self._inputs
        token_ids, slots = inputs.token_ids[:num_tokens], self._slots[:num_tokens]
        fill_last_tokens(token_ids, last_tokens)
        positions = inputs.positions[:num_tokens]
        batch = AttentionBatch(positions, inputs.query_starts, self._tables.tables, work, slots)
        map_slots(batch, self._limits.block_size, out=slots)
        return self._decoder.hidden_states(token_ids, batch, self._pages, inputs.wanted[:num_wanted], embeddings)
