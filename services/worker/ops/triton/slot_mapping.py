"""Computes the page slot that each token of a step is written to, once for all layers.

    slot = block_table[row, position // block_size] · block_size + position % block_size

The row of each token is found by bisection over query_starts. A recorded CUDA graph always has the same number of
tokens, so tokens from query_starts[-1] on are padding. Their slot is -1, and nothing is written for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.interface import AttentionBatch
from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.variant import Variant

TILE = 128
NUM_WARPS = 4


@triton.jit(do_not_specialize=["num_tokens", "num_sequences", "table_stride"])
def slot_mapping_kernel(
    positions,  # int32 [num_tokens]
    query_starts,  # int32 [num_sequences + 1]
    block_tables,  # int32 [num_sequences, >= max_blocks]
    slots,  # int64 [num_tokens]
    num_tokens,
    num_sequences,
    table_stride,
    block_size,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    allow_next_launch(PDL)
    wait_for_inputs(PDL)
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mine = tokens < tl.minimum(num_tokens, tl.load(query_starts + num_sequences))
    # A token's row is in [low, high), and is the last row that begins at or before the token. A row without tokens is
    # never found, because the next row begins at the same token.
    low = tl.zeros([TILE], tl.int32)
    high = low + num_sequences
    width = num_sequences
    while width > 1:
        middle = (low + high) // 2
        left = tl.load(query_starts + middle, mask=mine, other=0) > tokens
        high = tl.where(left, middle, high)
        low = tl.where(left, low, middle)
        width = (width + 1) // 2
    position = tl.load(positions + tokens, mask=mine, other=0)
    entry = low.to(tl.int64) * table_stride + position // block_size
    block = tl.load(block_tables + entry, mask=mine, other=0).to(tl.int64)
    slot = tl.where(mine, block * block_size + position % block_size, -1)
    tl.store(slots + tokens, slot, mask=tokens < num_tokens)


def map_slots(batch: AttentionBatch, block_size: int, out: Tensor | None = None) -> Tensor:
    """Returns `AttentionBatch.slot_mapping`, int64 [num_tokens], in `out` if it is given. Does not wait for the
    device."""
    num_tokens, num_sequences = batch.positions.shape[0], batch.block_tables.shape[0]
    slots = torch.empty(num_tokens, dtype=torch.int64, device=batch.positions.device) if out is None else out
    if num_tokens:
        slot_mapping_kernel[(triton.cdiv(num_tokens, TILE),)](
            batch.positions, batch.query_starts, batch.block_tables, slots, num_tokens, num_sequences,
            batch.block_tables.stride(0), block_size, TILE=TILE, num_warps=NUM_WARPS, **launch_arguments(),
        )  # fmt: skip
    return slots


def variants() -> Iterator[Variant]:
    tables = {"positions": "*i32", "query_starts": "*i32", "block_tables": "*i32", "slots": "*i64"}
    numbers = {"num_tokens": "i32", "num_sequences": "i32", "table_stride": "i32", "block_size": "i32:16"}
    yield Variant("slot_mapping", slot_mapping_kernel, {**tables, **numbers}, {"TILE": TILE}, NUM_WARPS, num_stages=3)
