"""Joins the results of a sequence's parts, which several programs of `decode.py` computed.

With o_i the attention over part i alone, and L_i = log2 Σ_n exp(s_n) over the scores s_n of its keys,

    out = Σ_i w_i o_i / Σ_i w_i,   w_i = exp2(L_i - max_j L_j)

(Flash-Decoding, Dao et al., 2023), in float32. Parts are added in the order of their positions, so that the result does
not depend on the order in which they were computed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.attention.tile import LOWEST

# Elements of the tile of results that are read at a time: 32 registers of each of a program's 128 threads.
_ELEMENTS = 4096
_MOST_PARTS = 8


def parts_at_a_time(num_heads: int, block_v: int) -> int:
    """Returns how many parts `join_parts` reads at a time: a power of two."""
    return max(1, min(_MOST_PARTS, _ELEMENTS // (num_heads * block_v)))


@triton.jit
def join_parts(
    partial_out: tl.tensor,  # float32 [max_items, HEADS, VALUE_DIM]
    partial_lse: tl.tensor,  # float32 [max_items, HEADS]
    first_item: tl.tensor,
    num_parts: tl.tensor,
    heads: tl.tensor,  # [BLOCK_G]
    held: tl.tensor,  # bool [BLOCK_G], False for rows without a head
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PARTS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns the greatest L_i and Σ_i w_i, [BLOCK_G] each, and Σ_i w_i o_i, [BLOCK_G, BLOCK_V]. The results of the
    parts must be visible to this program."""
    dims = tl.arange(0, BLOCK_V)
    greatest = tl.full([BLOCK_G], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    joined = tl.zeros([BLOCK_G, BLOCK_V], tl.float32)
    for start in range(0, num_parts, PARTS):
        parts = start + tl.arange(0, PARTS)
        mask = (parts < num_parts)[:, None] & held[None, :]
        slots = (first_item + parts)[:, None] * HEADS + heads[None, :]
        lse = tl.load(partial_lse + slots, mask=mask, other=float("-inf"))
        at = slots[:, :, None] * VALUE_DIM + dims[None, None, :]
        results = tl.load(partial_out + at, mask=mask[:, :, None] & (dims < VALUE_DIM)[None, None, :], other=0.0)
        above = tl.maximum(greatest, tl.max(lse, 0))
        weights = tl.exp2(lse - above[None, :])
        shrink = tl.exp2(greatest - above)
        greatest = above
        total = total * shrink + tl.sum(weights, 0)
        joined = joined * shrink[:, None] + tl.sum(results * weights[:, :, None], 0)
    return greatest, total, joined
