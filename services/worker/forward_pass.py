"""Where a step's inputs become logits: with tensors made for each step, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.worker.batch_state import I32, Batch, Limits
from services.worker.graphs import Recorder
from services.worker.models.decoder import Decoder
from services.worker.ops.interface import AttentionBatch, KVPages, Ops


class ForwardPass(Protocol):
    """Runs batches in the order of the calls, on the device's current stream, and waits for none."""

    buckets: list[int]  # numbers of tokens that graphs of decode-only steps can be recorded for, ascending

    def reset(self) -> None:
        """A new epoch: nothing of the last one's sequences counts."""
        ...

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """Records a graph for each of some `buckets`, between epochs."""
        ...

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor) -> Tensor | None:
        """Hidden states [n, hidden] of the batch's n wanted tokens, valid until the next run; None if there are none.

        block_tables [max_num_seqs, max_blocks_per_sequence] on the host, of all slots; last_tokens int64
        [max_num_seqs] on the device, one and the same tensor at each call. A run that has raised may be repeated.
        """
        ...


class PlainForwardPass:
    def __init__(self, decoder: Decoder, ops: Ops, pages: Sequence[KVPages]) -> None:
        self.buckets: list[int] = []
        self._decoder, self._ops, self._pages = decoder, ops, pages

    def reset(self) -> None:
        """Nothing stays from step to step."""

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """There is no bucket to record."""

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor) -> Tensor | None:
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
        wanted = batch.wanted_tokens
        hidden = self._decoder.hidden_states(token_ids, where, self._pages, torch.from_numpy(wanted).to(device))
        return hidden if len(wanted) else None


def create_forward_pass(decoder: Decoder, ops: Ops, pages: Sequence[KVPages], limits: Limits) -> ForwardPass:
    """On a GPU's kernels from inputs that stay on the device; elsewhere from tensors made anew for each step."""
    if ops.name == "triton":
        from services.worker.device_forward_pass import DeviceForwardPass

        return DeviceForwardPass(decoder, ops, pages, limits)
    return PlainForwardPass(decoder, ops, pages)
