"""Attention of a block of queries over a stretch of paged keys: the inner loop of both attention kernels.

For queries q_m at positions p_m, and the keys k_n and values v_n at positions n of the same sequence,

    s_mn = q_m · k_n · scale, or cap · tanh(q_m · k_n · scale / cap) with a soft cap (Gemma 2, section 2)
    o_m  = Σ_n exp(s_mn) v_n / Σ_n exp(s_mn)        over the visible n: p_m - window < n <= p_m

by online softmax (Milakov and Gimelshein, 2018; FlashAttention-2, Dao, 2023, section 3.1) over tiles of BLOCK_N keys
that begin at multiples of BLOCK_N in the sequence. Exponentials are to the base 2, with log2(e) folded into the scale;
scores, maxima, sums and the accumulator are float32.

A tile in which a query sees nothing leaves that query's state as it is, bit for bit: its weights are exactly 0, and the
old state is multiplied by exactly 1. So it does not matter to a query which stretch its block walks.

The page ids of a tile are loaded one tile ahead, into registers: a load that another load of the same iteration needs
would make Triton's pipeliner give up its second buffer, and the copies would no longer overlap with the arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
# The maximum of no scores: below every score, and finite, so that it may be subtracted from itself.
LOWEST: tl.constexpr = tl.constexpr(-1.0e38)


@triton.jit
def attend(
    q: tl.tensor,  # [BLOCK_M, BLOCK_D] in COMPUTE
    positions: tl.tensor,  # int32 [BLOCK_M], the queries' own
    begin: tl.tensor,  # the stretch's first position, a multiple of BLOCK_N
    end: tl.tensor,  # one past its last; what lies there may be anything, NaN included
    lowest: tl.tensor,  # the first position that any of the queries sees; pages before it may be gone
    table: tl.tensor,  # the sequence's page ids
    keys: tl.tensor,  # the KV head's keys in page 0
    values: tl.tensor,  # its values in page 0
    page_stride: tl.tensor,  # elements from page to page
    window: tl.tensor,  # positions that a query sees, its own included
    scale: tl.tensor,  # with log2(e) in it
    WINDOW: tl.constexpr,  # whether there is a window
    SOFT_CAP: tl.constexpr,  # 0: none
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # slots per page
    COMPUTE: tl.constexpr,  # the type that queries, keys, weights and values are multiplied in
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM, padded to a power of two
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns g = max_n s · log2(e) and Σ_n exp2(s · log2(e) - g), [BLOCK_M] each, and Σ_n exp2(s · log2(e) - g) v_n,
    [BLOCK_M, BLOCK_D].
    """
    slots = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    greatest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    at = begin + slots
    pages = tl.load(table + at // BLOCK_SIZE, mask=at < end, other=0)
    for start in range(begin, end, BLOCK_N):
        at = start + slots
        held = at < end
        if WINDOW:
            held &= at >= lowest
        # The product overflows 32 bits in a cache of more than 2^31 elements.
        offsets = (pages.to(tl.int64) * page_stride + (at % BLOCK_SIZE) * HEAD_DIM)[:, None] + dims[None, :]
        pages = tl.load(table + (at + BLOCK_N) // BLOCK_SIZE, mask=at + BLOCK_N < end, other=0)
        mask = held[:, None]
        if BLOCK_D != HEAD_DIM:
            mask &= dims[None, :] < HEAD_DIM

        k = dequantize(tl.load(keys + offsets, mask=mask, other=0.0), COMPUTE)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        factor = scale
        if SOFT_CAP > 0:
            # tanh(x) = 1 - 2 / (exp2(2 x log2(e)) + 1), which is right at both infinities.
            scores = SOFT_CAP * LOG2_E * (1 - 2 / (tl.exp2(scores * (scale * (2 / SOFT_CAP))) + 1))
            factor = 1.0
        visible = at[None, :] <= positions[:, None]
        if WINDOW:
            visible &= at[None, :] > positions[:, None] - window
        scores = tl.where(visible, scores, float("-inf"))

        # Scaled after the maximum is taken, in the same operation that subtracts it.
        above = tl.maximum(greatest, tl.max(scores, 1) * factor)
        weights = tl.exp2(scores * factor - above[:, None])
        shrink = tl.exp2(greatest - above)
        greatest = above
        total = total * shrink + tl.sum(weights, 1)
        v = dequantize(tl.load(values + offsets, mask=mask, other=0.0), COMPUTE)
        weighted = tl.dot(weights.to(COMPUTE), v, weighted * shrink[:, None], input_precision="ieee")
    return greatest, total, weighted


@triton.jit
def dequantize(stored: tl.tensor, COMPUTE: tl.constexpr) -> tl.tensor:
    """What a page holds, in COMPUTE, without the layer's scale. Bytes are fp8 e4m3fn on GPUs that cannot convert it
    (below capability 8.9): its exponent and mantissa become those of a float16, whose bias is greater by 8.
    """
    if stored.dtype == tl.uint8:
        bits = stored.to(tl.uint16)
        magnitude = (bits & 0x7F) << 7
        magnitude = tl.where(magnitude == 0x3F80, 0x7E00, magnitude)  # all ones is NaN
        return (((bits & 0x80) << 8) | magnitude).to(tl.uint16).to(tl.float16, bitcast=True).to(COMPUTE) * 256
    return stored.to(COMPUTE)
