"""Where a step's inputs become hidden states: with tensors made for each step, on any device.

A forward pass knows tokens, pages and the model. It must not know what becomes of the hidden states: whether tokens are
drawn from them, log probabilities read or vectors pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.worker.models import Decoder, Encoder
from services.worker.ops import AttentionBatch, KVPages, Ops, WholeSequences, upload
from services.worker.plan import I32, I64, Batch
from services.worker.step.clock import StepClock
from services.worker.step.graphs import Recorder


class ForwardPass(Protocol):
    """Runs batches in the order of the calls, on the device's current stream, and waits for none."""

    buckets: list[int]  # numbers of tokens that graphs of decode-only steps can be recorded for, ascending

    def reset(self) -> None:
        """A new epoch: nothing of the last one's sequences counts."""
        ...

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """Records a graph for each of some `buckets`, between epochs."""
        ...

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor, wanted: I64) -> Tensor:
        """Hidden states [n, hidden] of some tokens, valid until the next run. wanted [n]: distinct indices into the
        batch's tokens.

        block_tables [max_num_seqs, max_blocks_per_sequence] on the host, of all slots; last_tokens int64
        [max_num_seqs] on the device, one and the same tensor at each call. A run that has raised may be repeated.
        """
        ...


class PlainForwardPass:
    def __init__(self, decoder: Decoder, ops: Ops, pages: Sequence[KVPages], clock: StepClock) -> None:
        self.buckets: list[int] = []
        self._clock = clock
        self._decoder, self._ops, self._pages = decoder, ops, pages

    def reset(self) -> None:
        """Nothing stays from step to step."""

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """There is no bucket to record."""

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor, wanted: I64) -> Tensor:
        """See `ForwardPass`."""
        device = self._ops.device
        token_ids = torch.from_numpy(batch.token_ids).to(device)
        if len(batch.last_token_at):
            at, whose = torch.from_numpy(batch.last_token_at), torch.from_numpy(batch.last_token_slots)
            token_ids[at.to(device)] = last_tokens[whose.to(device)]
        work = self._ops.plan_attention(batch.query_starts, batch.positions)
        tables = np.ascontiguousarray(block_tables[batch.slots, : batch.num_blocks.max(initial=1)])
        where = AttentionBatch(
            positions=torch.from_numpy(batch.positions).to(device),
            query_starts=torch.from_numpy(batch.query_starts).to(device),
            block_tables=torch.from_numpy(tables).to(device),
            work=None if work is None else work.to(device),
        )
        at = torch.from_numpy(wanted).to(device)
        self._clock.begin()
        return self._decoder.hidden_states(token_ids, where, self._pages, at)


class EncoderForwardPass:
    """Of sequences that are computed whole. Nothing stays from step to step, and there are no pages."""

    def __init__(self, encoder: Encoder, device: torch.device, clock: StepClock) -> None:
        self.buckets: list[int] = []
        self._clock = clock
        self._encoder, self._device = encoder, device

    def reset(self) -> None:
        """Nothing stays from step to step."""

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """There is no bucket to record."""

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor, wanted: I64) -> Tensor:
        """See `ForwardPass`. Every row is a whole sequence."""
        whole = WholeSequences(
            positions=upload(batch.positions, self._device),
            query_starts=upload(batch.query_starts, self._device),
            lengths=tuple(np.diff(batch.query_starts).tolist()),
        )
        self._clock.begin()
        hidden = self._encoder.hidden_states(upload(batch.token_ids, self._device), whole)
        return hidden[upload(wanted, self._device)]
