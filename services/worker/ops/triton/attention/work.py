"""Divides the attention of one batch among programs: on the host, once per step, for all layers.

Rows with one query are cut into stretches of `split` positions (`decode.py`, `combine.py`), rows with several queries
into tiles of queries (`ragged.py`). One int32 array holds the whole plan. Its address never changes, so that a recorded
launch can read it:

    0  number of items    1  split    2  number of joins    3  number of tiles     then entries of four numbers:
    items   [max_items]     row of the block tables, token, position, index of the stretch in its sequence
    joins   [max_num_seqs]  token, position, index of the first item, 0     for each sequence with several stretches
    tiles   [max_tiles]     row of the block tables, first token, its position, number of queries

`split` is `split_size`, doubled until the batch has at most `max_items` stretches. So the memory for the results of
stretches is bounded, however long the sequences are. `max_items` is many times the number that keeps a GPU busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray

from services.worker.ops.interface import AttentionWork

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

# Indices in the array of the plan (see above). They are Triton constants, because kernels use them, too.
NUM_ITEMS = tl.constexpr(0)
SPLIT = tl.constexpr(1)
NUM_JOINS = tl.constexpr(2)
NUM_TILES = tl.constexpr(3)
ITEMS_AT = tl.constexpr(4)
ENTRY = tl.constexpr(4)


@dataclass(frozen=True, slots=True)
class WorkLayout:
    """Makes the plan of each batch: an array with the layout above, whose size is the same for all batches."""

    split_size: int  # positions
    queries_per_tile: int
    max_items: int  # at least max_num_seqs
    max_num_seqs: int
    max_num_batched_tokens: int
    batch_invariant: bool  # whether rows of one query get tiles too

    @property
    def joins_at(self) -> int:
        return int(ITEMS_AT) + int(ENTRY) * self.max_items

    @property
    def tiles_at(self) -> int:
        return self.joins_at + int(ENTRY) * self.max_num_seqs

    @property
    def max_tiles(self) -> int:
        return self.max_num_batched_tokens // self.queries_per_tile + self.max_num_seqs

    @property
    def size(self) -> int:
        return self.tiles_at + int(ENTRY) * self.max_tiles

    def lay_out(self, query_starts: I32, positions: I32) -> AttentionWork:
        """Returns the plan of a batch. query_starts [num_sequences + 1]; positions [num_tokens], consecutive within a
        row. Rows can be empty. Raises ValueError if the batch has more rows or tokens than the layout allows.
        """
        if len(query_starts) - 1 > self.max_num_seqs or len(positions) > self.max_num_batched_tokens:
            raise ValueError(
                f"the batch has {len(query_starts) - 1} rows and {len(positions)} tokens; the work list was made for "
                f"at most {self.max_num_seqs} rows and {self.max_num_batched_tokens} tokens"
            )
        work = np.zeros(self.size, np.int32)
        counts = np.diff(query_starts)
        single = np.zeros(len(counts), bool) if self.batch_invariant else counts == 1
        decodes, others = np.flatnonzero(single), np.flatnonzero(~single & (counts > 0))
        self._lay_out_items(work, decodes, query_starts[decodes], positions[query_starts[decodes]])
        starts = query_starts[others]
        self._lay_out_tiles(work, others, counts[others], starts, positions[starts])
        return AttentionWork(torch.from_numpy(work), len(decodes), int(work[NUM_TILES]))

    def _lay_out_items(self, work: I32, rows: I64, tokens: I32, positions: I32) -> None:
        # Longest sequences first, so that the items that are computed last are short.
        order = np.argsort(-positions, kind="stable")
        rows, tokens, positions = rows[order], tokens[order], positions[order]
        split = self.split_size
        while (num_parts := positions // split + 1).sum() > self.max_items:
            split *= 2
        ends = np.cumsum(num_parts)
        of = np.repeat(np.arange(len(rows)), num_parts)  # [num_items], each item's sequence
        parts = np.arange(len(of)) - np.repeat(ends - num_parts, num_parts)
        items = np.stack((rows[of], tokens[of], positions[of], parts), axis=1)
        split_up = np.flatnonzero(num_parts > 1)
        joins = np.stack((tokens, positions, ends - num_parts, np.zeros_like(tokens)), axis=1)[split_up]
        work[NUM_ITEMS], work[SPLIT], work[NUM_JOINS] = len(items), split, len(joins)
        work[ITEMS_AT : ITEMS_AT + items.size] = items.ravel()
        work[self.joins_at : self.joins_at + joins.size] = joins.ravel()

    def _lay_out_tiles(self, work: I32, rows: I64, counts: I32, tokens: I32, positions: I32) -> None:
        num_tiles = -(-counts // self.queries_per_tile)
        of = np.repeat(np.arange(len(rows)), num_tiles)  # [num_tiles], each tile's row
        skipped = (np.arange(len(of)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)) * self.queries_per_tile
        sizes = np.minimum(counts[of] - skipped, self.queries_per_tile)
        tiles = np.stack((rows[of], tokens[of] + skipped, positions[of] + skipped, sizes), axis=1)
        tiles = tiles[np.argsort(-(tiles[:, 2] + tiles[:, 3]), kind="stable")]
        work[NUM_TILES] = len(tiles)
        work[self.tiles_at : self.tiles_at + tiles.size] = tiles.ravel()
