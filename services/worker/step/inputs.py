"""Inputs of a GPU's forward pass other than weights and pages, in buffers with fixed addresses.

For the kernels, row r is the sequence in slot r, and a slot that is not in the step is a row without tokens. So a
sequence's block table stays in the same row on the device, and a step sends only its new entries. Hidden states and
sampled tokens still come back in the order of the plan's rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from services.worker.models import InputEmbeddings
from services.worker.ops import AttentionWork, Ops
from services.worker.plan import I32, I64, Batch, Limits
from services.worker.step.embeddings import upload_embeddings
from services.worker.transfers import PackedArrays


class StepInputs:
    """Tokens and rows of the latest step, in device buffers that are large enough for every step within `Limits`."""

    def __init__(self, ops: Ops, limits: Limits) -> None:
        self._ops = ops
        self._num_slots = limits.max_num_seqs
        tokens, rows = limits.max_num_batched_tokens, limits.max_num_seqs
        self._arrays = PackedArrays(
            {
                "query_starts": (torch.int32, rows + 1),
                "wanted": (torch.int64, tokens),
                "work": (torch.int32, len(self.plan_decodes(0).items)),
                "token_ids": (torch.int64, tokens),
                "positions": (torch.int32, tokens),
            },
            ops.device,
        )
        self.query_starts = self._arrays.on_device("query_starts")  # int32 [max_num_seqs + 1]
        # int64 [max_num_batched_tokens], indices of the tokens whose hidden states are wanted; 0 in the unused part
        self.wanted = self._arrays.on_device("wanted")
        self.work_items = self._arrays.on_device("work")
        # int64 [max_num_batched_tokens], token ids; -1 - slot stands for the token that was sampled last in that slot;
        # 0 in the unused part
        self.token_ids = self._arrays.on_device("token_ids")
        self.positions = self._arrays.on_device("positions")  # int32 [max_num_batched_tokens]

    def clear(self) -> None:
        """Sends the device the inputs of a step without tokens."""
        self._arrays.send(self._arrays.blank())

    def plan_decodes(self, num_rows: int) -> AttentionWork:
        """Returns the attention work of a step in which `num_rows` slots compute one token each."""
        starts = np.minimum(np.arange(self._num_slots + 1), num_rows).astype(np.int32)
        work = self._ops.plan_attention(starts, np.zeros(num_rows, np.int32))
        assert work is not None, "operations that run on slots plan their attention"
        return work

    def send(self, batch: Batch, wanted: I64) -> tuple[AttentionWork, InputEmbeddings | None]:
        """Sends a step's inputs to the device. `wanted` [n]: distinct indices of the tokens whose hidden states are
        wanted. Returns the step's attention work and given embeddings, which are on the device. Only the embeddings
        have no fixed address."""
        by_slot = np.argsort(batch.slots)
        counts = np.diff(batch.query_starts)[by_slot].astype(np.int64)
        query_starts = np.zeros(self._num_slots + 1, np.int64)
        query_starts[batch.slots[by_slot] + 1] = counts
        query_starts = np.cumsum(query_starts)
        source = _ranges(batch.query_starts[:-1][by_slot], counts)  # [num_tokens], each token's index in the plan
        place = np.empty_like(source)
        place[source] = np.arange(len(source))
        token_ids = batch.token_ids.copy()
        token_ids[batch.last_token_at] = -1 - batch.last_token_slots
        positions, starts = batch.positions[source], query_starts.astype(np.int32)
        work = self._ops.plan_attention(starts, positions)
        assert work is not None
        host = self._arrays.blank()
        host["query_starts"] = starts
        host["wanted"] = place[wanted]
        host["work"] = work.items.numpy()
        host["token_ids"] = token_ids[source]
        host["positions"] = positions
        self._arrays.send(host)
        given = batch.embeddings
        embeddings = None if given is None else upload_embeddings(given, place[given.at], self._ops)
        return AttentionWork(self.work_items, work.num_decodes, work.num_tiles), embeddings


class SlotTables:
    """Block tables of all slots, on the device. `send` adds the entries that the device does not have yet."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        shape = (limits.max_num_seqs, limits.max_blocks_per_sequence)
        self.tables = torch.zeros(shape, dtype=torch.int32, device=device)  # [max_num_seqs, max_blocks_per_sequence]
        # Maximum number of entries per copy to the device. A step with more new entries needs several copies. When 256
        # sequences of 8,192 tokens start at once with blocks of 16 tokens, they add 131,072 entries. While they decode,
        # they add 16 per step.
        self._capacity = max(limits.max_num_seqs, 4096)
        lengths = {"at": (torch.int64, self._capacity), "blocks": (torch.int32, self._capacity)}
        self._arrays = PackedArrays(lengths, device)
        self._owner: I64 = np.empty(0, np.int64)
        self._num_sent: I64 = np.empty(0, np.int64)
        self.reset()

    def reset(self) -> None:
        """Forgets which entries were sent, because the sequences of the worker's next scheduler can have the same wire
        ids as the present ones."""
        self._owner = np.full(len(self.tables), -1, np.int64)
        self._num_sent = np.zeros(len(self.tables), np.int64)

    def send(self, wire_ids: I64, slots: I64, num_blocks: I64, tables: I32) -> None:
        """Sends the table entries that the device does not have yet. A sequence's table only grows; entries that were
        sent never change. wire_ids, slots, num_blocks [num_rows]: one per row of the step. tables [max_num_seqs,
        max_blocks_per_sequence]: the tables of all slots."""
        have = np.where(self._owner[slots] == wire_ids, self._num_sent[slots], 0)
        missing = num_blocks - have
        at = np.repeat(slots * tables.shape[1], missing) + _ranges(have, missing)
        for start in range(0, len(at), self._capacity):
            self._scatter(at[start : start + self._capacity], tables)
        self._owner[slots] = wire_ids
        self._num_sent[slots] = num_blocks

    def _scatter(self, at: I64, tables: I32) -> None:
        host = self._arrays.blank()
        host["at"] = at
        host["blocks"] = tables.ravel()[at]
        self._arrays.send(host)
        entries = self._arrays.on_device("at")[: len(at)], self._arrays.on_device("blocks")[: len(at)]
        self.tables.view(-1).index_copy_(0, *entries)


def _ranges(starts: NDArray[np.integer], counts: I64) -> I64:
    """Returns starts[0], starts[0] + 1, ... (counts[0] values), then the same for starts[1], and so on."""
    ends = np.cumsum(counts)
    offsets: I64 = np.repeat(starts - (ends - counts), counts)
    return offsets + np.arange(len(offsets))
