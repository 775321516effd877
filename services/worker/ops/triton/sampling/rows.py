"""A row's logits as they are drawn from, the same bits in every kernel that looks at them.

    x = (y - max y) / temperature <= 0

x is compared by its *distance* from the row's greatest, |x|, as the integer that its float32 bits are: nonnegative
floats and their bits are in the same order. So a cut is an integer, exact, and the smaller the likelier.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.sampling.columns import LOG_MIN_P, TEMPERATURE, number

# Distance of the greatest finite float: farther is -inf, which is never drawn.
FARTHEST = tl.constexpr(0x7F7FFFFF)


@triton.jit
def distance(x):
    """int32, of x <= 0."""
    return tl.abs(x).to(tl.int32, bitcast=True)


@triton.jit
def min_p_distance(columns, slot):
    """Farthest distance that min-p keeps: exp(x) >= min_p (Nguyen et al., 2024)."""
    return tl.minimum(distance(number(columns, slot, LOG_MIN_P)), FARTHEST)


@triton.jit
def load_logits(logits, logits_stride, shaped, shaped_stride, row, is_shaped, ids, vocab_size):
    """float32; -inf past the vocabulary."""
    inside = ids < vocab_size
    if is_shaped:
        y = tl.load(shaped + row * shaped_stride + ids, mask=inside, other=float("-inf"))
    else:
        y = tl.load(logits + row * logits_stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    return y


@triton.jit
def scaled(y, greatest, columns, slot):
    """IEEE division: the host's sampler rounds in the same way."""
    return tl.div_rn(y - greatest, number(columns, slot, TEMPERATURE))


@triton.jit
def greatest_of(tile_values, row, tiles, TILES: tl.constexpr):
    """The greatest of a row's [tiles] values, one per tile."""
    at = tl.arange(0, TILES)
    return tl.max(tl.load(tile_values + row * tiles + at, mask=at < tiles, other=float("-inf")), 0)
