"""Scaled logits x of a row, with the same bits in every kernel that reads them.

    x = (y - max y) / temperature <= 0          y: logits after biases, penalties and mask (`shape.py`)

The *distance* of a token from the row's greatest logit is |x|, with its float32 bits read as an integer. Nonnegative
floats and their bits have the same order. So a smaller distance means a likelier token, and the greatest distances that
top-k, top-p and min-p keep are exact integers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.sampling.columns import LOG_MIN_P, TEMPERATURE, number

# Distance of the least finite x. Only tokens with x = -inf are farther, and they are never sampled.
FARTHEST = tl.constexpr(0x7F7FFFFF)


@triton.jit
def distance(x):
    """Returns the distance of x <= 0, int32."""
    return tl.abs(x).to(tl.int32, bitcast=True)


@triton.jit
def min_p_distance(columns, slot):
    """Returns the greatest distance from the row's greatest logit at which min-p keeps a token. Min-p (Nguyen et al.,
    2024) keeps tokens with exp(x) >= min_p."""
    return tl.minimum(distance(number(columns, slot, LOG_MIN_P)), FARTHEST)


@triton.jit
def load_logits(logits, logits_stride, shaped, shaped_stride, row, is_shaped, ids, vocab_size):
    """Returns the float32 logits y of the tokens `ids`; -inf for ids past the vocabulary."""
    inside = ids < vocab_size
    if is_shaped:
        y = tl.load(shaped + row * shaped_stride + ids, mask=inside, other=float("-inf"))
    else:
        y = tl.load(logits + row * logits_stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    return y


@triton.jit
def scaled(y, greatest, columns, slot):
    """Returns the scaled logit x = (y - greatest) / temperature. Divides with the rounding of IEEE 754, so that x has
    the same bits as in the host's sampler."""
    return tl.div_rn(y - greatest, number(columns, slot, TEMPERATURE))


@triton.jit
def greatest_of(tile_values, row, tiles, TILES: tl.constexpr):
    """Returns the greatest value of a row. `tile_values`: [rows, tiles], one value per tile."""
    at = tl.arange(0, TILES)
    return tl.max(tl.load(tile_values + row * tiles + at, mask=at < tiles, other=float("-inf")), 0)
