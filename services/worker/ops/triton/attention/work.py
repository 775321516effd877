"""Divides the attention of one batch among programs: on the host, once per step, for all layers.

Rows with one query are cut into parts (`decode.py`), rows with several queries into tiles of queries (`ragged.py`). One
int32 array holds the whole plan. Its address never changes, so that a recorded launch can read it:

    0  number of items    1  number of tiles     then
    items   [max_items, 6]  row of the block tables, token, position, part, number of parts, item of the first part
    tiles   [max_tiles, 4]  row of the block tables, first token, its position, number of queries

The parts of a row are equal stretches of the keys that a layer sees. The plan says only how many there are, because
each layer divides its own keys: those of the whole sequence, or those of its window.

More parts keep more of the GPU busy, but each costs a fixed time, and a row's last part to finish joins the others.
`_parts_of` weighs this. If a batch would have more than `max_items` parts, its rows get fewer. So the memory for the
results of parts is bounded, however long the sequences are.
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
NUM_TILES = tl.constexpr(1)
ITEMS_AT = tl.constexpr(2)
ITEM = tl.constexpr(6)
ENTRY = tl.constexpr(4)

# The cost of parts is counted in the time that a tile of keys takes while memory is not busy: 0.6 us on an H200. A part
# costs a fixed time, too: it waits for its item, its page ids, its first keys and its turn to store, one after the
# other, about 3 us. While two programs per SM read, memory is the bound, and a tile takes _WHEN_BUSY. Joins cost the
# more, the more programs store and count at the same time: with 32 sequences of 575 tokens, two parts each took 35.6 us
# and one part each 25.8 us, but one sequence of 512 tokens took 12.1 us in one part and 7.8 us in eight.
_PER_PART = 5.0
_WHEN_BUSY = 3.1
_PER_JOIN = 8.0  # if all programs join
_PER_JOINED_PART = 0.3
# Tiles per part that are compared.
_LENGTHS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 128, 256], np.int64)


@dataclass(frozen=True, slots=True)
class WorkLayout:
    """Makes the plan of each batch: an array with the layout above, whose size is the same for all batches."""

    tile_size: int  # positions of one tile of keys
    parallel_items: int  # items that run side by side on the GPU
    queries_per_tile: int
    max_items: int  # at least max_num_seqs
    max_num_seqs: int
    max_num_batched_tokens: int
    batch_invariant: bool  # whether rows of one query get tiles too
    tiles_per_part: int = 0  # 0: chosen for each batch

    @property
    def tiles_at(self) -> int:
        return int(ITEMS_AT) + int(ITEM) * self.max_items

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
        if not len(rows):
            return
        # Longest sequences first, so that the items that are computed last are short.
        order = np.argsort(-positions, kind="stable")
        rows, tokens, positions = rows[order], tokens[order], positions[order]
        num_parts = self._parts_of(positions.astype(np.int64) // self.tile_size + 1)
        ends = np.cumsum(num_parts)
        of = np.repeat(np.arange(len(rows)), num_parts)  # [num_items], each item's sequence
        first = (ends - num_parts)[of]
        parts = np.arange(len(of)) - first
        items = np.stack((rows[of], tokens[of], positions[of], parts, num_parts[of], first), axis=1)
        work[NUM_ITEMS] = len(items)
        work[ITEMS_AT : ITEMS_AT + items.size] = items.ravel()

    def _parts_of(self, tiles: I64) -> I64:
        """Returns the number of parts of each row. tiles [num_rows], of each row's keys, longest first."""
        lengths = np.append(_LENGTHS if not self.tiles_per_part else self.tiles_per_part * _LENGTHS, tiles[0])
        num_parts = -(-tiles // lengths[:, None])  # [lengths, rows]
        num_items = num_parts.sum(axis=1)
        if self.tiles_per_part:
            costs = np.arange(len(lengths), dtype=np.float64)
        else:
            rounds = num_items / self.parallel_items
            alone = np.maximum(1.0, rounds) * (_PER_PART + np.minimum(lengths, tiles[0]))
            busy = _WHEN_BUSY * tiles.sum() / self.parallel_items
            joins = _PER_JOIN * np.minimum(1.0, rounds) + _PER_JOINED_PART * num_parts[:, 0]
            costs = np.maximum(alone, busy) + np.where(num_parts[:, 0] > 1, joins, 0.0)
        costs[num_items > self.max_items] = np.inf  # never the last: then each row has one part
        best: I64 = num_parts[np.argmin(costs)]
        return best

    def _lay_out_tiles(self, work: I32, rows: I64, counts: I32, tokens: I32, positions: I32) -> None:
        num_tiles = -(-counts // self.queries_per_tile)
        of = np.repeat(np.arange(len(rows)), num_tiles)  # [num_tiles], each tile's row
        skipped = (np.arange(len(of)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)) * self.queries_per_tile
        sizes = np.minimum(counts[of] - skipped, self.queries_per_tile)
        tiles = np.stack((rows[of], tokens[of] + skipped, positions[of] + skipped, sizes), axis=1)
        tiles = tiles[np.argsort(-(tiles[:, 2] + tiles[:, 3]), kind="stable")]
        work[NUM_TILES] = len(tiles)
        work[self.tiles_at : self.tiles_at + tiles.size] = tiles.ravel()
