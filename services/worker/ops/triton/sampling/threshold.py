"""Last step of top-k and top-p (`cuts.py`): finds the exact cut, a distance from the greatest logit, by a 16-way search
within the cut's bracket."""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.sampling.columns import TOP_K, TOP_P, integer, is_shaped, number
from services.worker.ops.triton.sampling.cuts import (
    ABOVE_COUNT,
    ABOVE_MASS,
    BRACKET,
    CAPACITY,
    FOUND,
    FROM,
    MASS,
    NO_CUT,
    SIZE,
    TO,
    cuts,
)
from services.worker.ops.triton.sampling.rows import distance, greatest_of, load_logits, min_p_distance, scaled

WAYS = tl.constexpr(16)
CHUNK = tl.constexpr(512)
NUM_WARPS = 8


@triton.jit
def up_to(
    limits,  # int32 [WAYS]
    bracket,  # columns of `found` from FROM on
    listed,  # the bracket's list
    logits,
    logits_stride,
    shaped,
    vocab_size,
    row,
    in_scratch,
    greatest,
    columns,
    slot,
    WEIGH: tl.constexpr,
):
    """Returns, for each of `limits`, the number of tokens within this distance, or their mass if WEIGH: [WAYS]. Counts
    only the tokens in the bracket, and adds the known number (ABOVE_COUNT) or mass (ABOVE_MASS) of nearer tokens."""
    size = tl.load(bracket + SIZE)
    begin, kept = tl.load(bracket + FROM), min_p_distance(columns, slot)
    in_list = size <= CAPACITY
    end = vocab_size
    if in_list:
        end = size
    total = tl.zeros([WAYS, CHUNK], tl.float32 if WEIGH else tl.int32)
    for start in range(0, end, CHUNK):
        at = start + tl.arange(0, CHUNK)
        if in_list:
            x = tl.load(listed + at, mask=at < size, other=float("-inf"))
        else:
            y = load_logits(logits, logits_stride, shaped, vocab_size, row, in_scratch, at, vocab_size)
            x = scaled(y, greatest, columns, slot)
        near = distance(x)
        inside = ((near >= begin) & (near <= kept))[None, :] & (near[None, :] <= limits[:, None])
        if WEIGH:
            total += tl.where(inside, tl.exp(x)[None, :], 0.0)
        else:
            total += inside.to(tl.int32)
    above = tl.load(bracket + ABOVE_COUNT)
    if WEIGH:
        return tl.sum(total, 1) + tl.load(bracket + ABOVE_MASS).to(tl.float32, bitcast=True)
    return tl.sum(total, 1) + above


@triton.jit
def search(
    target, bracket, listed, logits, logits_stride, shaped, vocab_size, row, in_scratch, greatest, columns, slot,
    WEIGH: tl.constexpr,
):  # fmt: skip
    """Returns the least distance in the bracket such that the tokens within this distance reach `target` by their
    number, or by their mass if WEIGH. Returns the bracket's greatest distance if no distance reaches `target`."""
    low, high = tl.load(bracket + FROM), tl.load(bracket + TO)
    way = tl.arange(0, WAYS)
    while low < high:
        step = (high - low) // WAYS + 1
        reached = up_to(
            low + (way + 1) * step - 1, bracket, listed, logits, logits_stride, shaped, vocab_size, row, in_scratch,
            greatest, columns, slot, WEIGH,
        ) >= target  # fmt: skip
        first = tl.min(tl.where(reached, way, (high - low) // step), 0)
        high = tl.minimum(high, low + (first + 1) * step - 1)
        low += first * step
    return low


@triton.jit(do_not_specialize=["tiles"])
def threshold_kernel(
    logits,
    logits_stride,
    columns,
    slots,
    mask_rows,
    shaped,
    peaks,
    found,
    lists,
    cut,  # int32 [n], output, only for rows with top-k or top-p: the greatest distance of a token that the cuts keep
    vocab_size,
    tiles,
    TILES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        if cuts(columns, slot):
            greatest = greatest_of(peaks, row, tiles, TILES)
            in_scratch = is_shaped(columns, slot, tl.load(mask_rows + row))
            found += row * FOUND
            lists += row * 2 * CAPACITY
            nearest = min_p_distance(columns, slot)
            mass = tl.load(found + MASS).to(tl.float32, bitcast=True)
            if tl.load(found + SIZE) != NO_CUT:
                nearest = search(
                    integer(columns, slot, TOP_K), found, lists, logits, logits_stride, shaped, vocab_size, row,
                    in_scratch, greatest, columns, slot, False,
                )  # fmt: skip
                mass = tl.max(up_to(
                    nearest + tl.zeros([WAYS], tl.int32), found, lists, logits, logits_stride, shaped, vocab_size, row,
                    in_scratch, greatest, columns, slot, True,
                ), 0)  # fmt: skip
            if tl.load(found + BRACKET + SIZE) != NO_CUT:
                nearest = tl.minimum(nearest, search(
                    number(columns, slot, TOP_P) * mass, found + BRACKET, lists + CAPACITY, logits, logits_stride,
                    shaped, vocab_size, row, in_scratch, greatest, columns, slot, True,
                ))  # fmt: skip
            tl.store(cut + row, nearest)
