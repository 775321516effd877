"""Attention of a block of queries over a stretch of paged keys: the inner loop of both attention kernels.

For queries q_m at positions p_m, and the keys k_n and values v_n at positions n of the same sequence,

    s_mn = q_m · k_n · scale, or cap · tanh(q_m · k_n · scale / cap) with a soft cap (Gemma 2, section 2),
           plus slope · (n - p_m) with slopes (ALiBi: Press et al., 2022, section 3)
    o_m  = Σ_n exp(s_mn) v_n / Σ_n exp(s_mn)        over the visible n: p_m - window < n <= p_m,
                                                     or p_m - p_m mod chunk <= n <= p_m

It uses online softmax (Milakov and Gimelshein, 2018; FlashAttention-2, Dao, 2023, section 3.1) over tiles of BLOCK_N
keys that begin at multiples of BLOCK_N in the sequence. Exponentials are to the base 2, with log2(e) folded into the
scale. Scores, maxima, sums and the accumulator are float32.

A tile in which a query sees no key leaves that query's state unchanged, bit for bit: its weights are exactly 0, and the
old state is multiplied by exactly 1. So a query's result does not change if the stretch also has tiles that only other
queries of the block see.

The page ids of a tile are loaded into registers while the tile before it is computed. If the loads of keys and values
took their page ids from a load of the same iteration, Triton's pipeliner would not double-buffer them, and they would
not overlap with the arithmetic.

A latent cache (DeepSeek-V2, section 2.1) has one key for all heads, whose first elements are also the value. It is read
once, in two pieces whose sizes need little padding to a power of two: the value, and the rest of the key. The heads are
divided into groups, which the callers treat as those of different KV heads.

fp8 pages are read as 16-bit words that hold two neighbouring dimensions. Even and odd dimensions are multiplied
separately. So words are loaded and transposed like 16-bit elements, and the two words of a register are converted to
floats together (`widen.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.widen import from_fp8_pages, pages_factor

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
# Initial maximum: below every score, but finite, because -inf minus -inf would be NaN.
LOWEST: tl.constexpr = tl.constexpr(-1.0e38)


@triton.jit
def attend(
    q_rows: tl.tensor,  # pointers [BLOCK_M] to the start of each query
    held: tl.tensor,  # bool [BLOCK_M], False for rows without a query
    positions: tl.tensor,  # int32 [BLOCK_M], positions of the queries
    begin: tl.tensor,  # the stretch's first position, a multiple of BLOCK_N
    end: tl.tensor,  # one past the stretch's last position; slots from there on can hold anything, even NaN
    lowest: tl.tensor,  # the first position that any query sees; earlier pages might already be freed
    table: tl.tensor,  # page ids of the sequence
    keys: tl.tensor,  # pointer to page 0; fp8 pages are read as int16 words, each with the values of two dimensions
    values: tl.tensor,  # as keys
    kv_head: tl.tensor,
    key_stride: tl.tensor,  # elements from page to page
    value_stride: tl.tensor,
    slopes: tl.tensor,  # pointers [BLOCK_M] to each query's slope, float32
    window: tl.tensor,  # positions that a query sees, including its own
    scale: tl.tensor,  # includes log2(e)
    WINDOW: tl.constexpr,  # whether there is a window
    CHUNK: tl.constexpr,  # a query sees only its own chunk of so many positions; 0: no chunks
    SOFT_CAP: tl.constexpr,  # 0: none
    SLOPES: tl.constexpr,  # whether there are slopes
    LATENT: tl.constexpr,  # whether a key's first VALUE_DIM elements are its value; then all heads share one key
    HEAD_DIM: tl.constexpr,  # of queries and keys
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # slots per page
    COMPUTE: tl.constexpr,  # the type that queries, keys, weights and values are multiplied in
    NATIVE: tl.constexpr,  # whether the GPU has an instruction that converts fp8
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM, padded: `tuning.block_d`; with LATENT, VALUE_DIM, padded
    BLOCK_V: tl.constexpr,  # VALUE_DIM, likewise
    BLOCK_REST: tl.constexpr,  # with LATENT: HEAD_DIM - VALUE_DIM, padded
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns g = max_n s · log2(e) and Σ_n exp2(s · log2(e) - g), [BLOCK_M] each, and Σ_n exp2(s · log2(e) - g) v_n,
    [BLOCK_M, BLOCK_V].
    """
    WORDS: tl.constexpr = keys.dtype.element_ty == tl.int16
    SLOT: tl.constexpr = HEAD_DIM // 2 if WORDS else HEAD_DIM  # elements of a slot
    WIDTH: tl.constexpr = VALUE_DIM if LATENT else SLOT  # those that `q` and `k` hold; LATENT: the others are the rest
    BLOCK_W: tl.constexpr = BLOCK_D // 2 if WORDS else BLOCK_D
    FACTOR: tl.constexpr = pages_factor(COMPUTE, NATIVE) if WORDS else 1.0
    V_WIDTH: tl.constexpr = VALUE_DIM // 2 if WORDS else VALUE_DIM
    BLOCK_VW: tl.constexpr = BLOCK_V // 2 if WORDS else BLOCK_V
    slots = tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_W)
    value_lanes = tl.arange(0, BLOCK_VW)
    q_mask = held[:, None]
    if BLOCK_W != WIDTH:
        q_mask &= lanes[None, :] < WIDTH
    if WORDS:  # q's even and odd dimensions are loaded separately, because `from_fp8_pages` returns keys in this form
        q_at = q_rows[:, None] + 2 * lanes[None, :]
        q = tl.load(q_at, mask=q_mask, other=0.0).to(COMPUTE)
        q_odd = tl.load(q_at + 1, mask=q_mask, other=0.0).to(COMPUTE)
        weighted_odd = tl.zeros([BLOCK_M, BLOCK_VW], tl.float32)
    else:
        q = tl.load(q_rows[:, None] + lanes[None, :], mask=q_mask, other=0.0).to(COMPUTE)
    if LATENT:
        rest = tl.arange(0, BLOCK_REST)
        is_rest = rest < HEAD_DIM - VALUE_DIM
        q_rest_at = q_rows[:, None] + VALUE_DIM + rest[None, :]
        q_rest = tl.load(q_rest_at, mask=held[:, None] & is_rest[None, :], other=0.0).to(COMPUTE)
        head_offset = kv_head.to(tl.int64) * 0
    else:
        head_offset = kv_head.to(tl.int64) * (BLOCK_SIZE * WIDTH)
    value_head_offset = kv_head.to(tl.int64) * (BLOCK_SIZE * V_WIDTH)
    greatest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, BLOCK_VW], tl.float32)
    if SLOPES:
        slope = tl.load(slopes, mask=held, other=0.0) * LOG2_E
    at = begin + slots
    pages = tl.load(table + at // BLOCK_SIZE, mask=at < end, other=0)
    for start in range(begin, end, BLOCK_N):
        at = start + slots
        seen = at < end
        if WINDOW or CHUNK > 0:
            seen &= at >= lowest
        mask = seen[:, None]
        if BLOCK_W != WIDTH:
            mask &= lanes[None, :] < WIDTH
        # 64 bits: this product overflows 32 bits in a cache of more than 2^31 elements.
        in_pages = head_offset + pages.to(tl.int64) * key_stride + (at % BLOCK_SIZE) * SLOT
        offsets = in_pages[:, None] + lanes[None, :]
        if VALUE_DIM == HEAD_DIM or LATENT:  # pages of keys and of values have one layout, and registers are scarce
            value_mask = mask
            value_offsets = offsets
        else:
            value_mask = seen[:, None]
            if BLOCK_VW != V_WIDTH:
                value_mask &= value_lanes[None, :] < V_WIDTH
            in_page = value_head_offset + pages.to(tl.int64) * value_stride + (at % BLOCK_SIZE) * V_WIDTH
            value_offsets = in_page[:, None] + value_lanes[None, :]
        pages = tl.load(table + (at + BLOCK_N) // BLOCK_SIZE, mask=at + BLOCK_N < end, other=0)

        k = tl.load(keys + offsets, mask=mask, other=0)
        if WORDS:
            k, k_odd = from_fp8_pages(k, COMPUTE, NATIVE)
            scores = tl.dot(q_odd, tl.trans(k_odd), input_precision="ieee")
            scores = tl.dot(q, tl.trans(k), scores, input_precision="ieee")
        else:
            scores = tl.dot(q, tl.trans(k.to(COMPUTE)), input_precision="ieee")
        if LATENT:
            k_rest_at = keys + in_pages[:, None] + VALUE_DIM + rest[None, :]
            k_rest = tl.load(k_rest_at, mask=seen[:, None] & is_rest[None, :], other=0)
            scores = tl.dot(q_rest, tl.trans(k_rest.to(COMPUTE)), scores, input_precision="ieee")
        factor = scale / FACTOR
        if SOFT_CAP > 0:
            # tanh(x) = 1 - 2 / (exp2(2 x log2(e)) + 1), which is correct at both infinities.
            scores = SOFT_CAP * LOG2_E * (1 - 2 / (tl.exp2(scores * (factor * (2 / SOFT_CAP))) + 1))
            factor = 1.0
        if SLOPES:
            distances = (at[None, :] - positions[:, None]).to(tl.float32)
            scores = scores * factor + distances * slope[:, None]
            factor = 1.0
        visible = at[None, :] <= positions[:, None]
        if WINDOW:
            visible &= at[None, :] > positions[:, None] - window
        if CHUNK > 0:
            visible &= at[None, :] >= (positions // CHUNK * CHUNK)[:, None]
        scores = tl.where(visible, scores, float("-inf"))

        # Scores are scaled only after their maximum is taken, so that one operation scales them and subtracts the
        # maximum.
        above = tl.maximum(greatest, tl.max(scores, 1) * factor)
        weights = tl.exp2(scores * factor - above[:, None])
        shrink = tl.exp2(greatest - above)
        greatest = above
        total = total * shrink + tl.sum(weights, 1)
        weights = weights.to(COMPUTE)
        v = k if LATENT else tl.load(values + value_offsets, mask=value_mask, other=0)
        if WORDS:
            v, v_odd = from_fp8_pages(v, COMPUTE, NATIVE)
            weighted_odd = tl.dot(weights, v_odd, weighted_odd * shrink[:, None], input_precision="ieee")
        weighted = tl.dot(weights, v.to(COMPUTE), weighted * shrink[:, None], input_precision="ieee")
    if WORDS:
        weighted = tl.interleave(weighted, weighted_odd) * (1 / FACTOR)
    return greatest, total, weighted


@triton.jit
def add_sinks(
    greatest: tl.tensor,  # [BLOCK_M], as `attend` returns it
    total: tl.tensor,  # [BLOCK_M], as `attend` returns it
    sinks: tl.tensor,  # pointers [BLOCK_M] to each query's sink, float32
    held: tl.tensor,  # bool [BLOCK_M]
) -> tl.tensor:
    """Returns the total with the weight of a score that has no value, relative to the same maximum."""
    return total + tl.exp2(tl.load(sinks, mask=held, other=float("-inf")) * LOG2_E - greatest)
