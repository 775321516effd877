"""Top-k and top-p (Holtzman et al., 2020) without a sort. The result is the exact cut, as a distance from the greatest
logit (`rows.py`).

The cuts equal those of the host's sampler: min-p first, then top-k of the rest, then top-p of what top-k leaves. A cut
is a threshold: tokens as likely as the last one kept are kept too. Let C(d) be the number of tokens within distance d,
and M(d) (their mass) the sum of exp(x) over these tokens, with x as in `rows.py`. Then

    top-k:  the least d with C(d) >= k;        top-p:  the least d with M(d) >= p · M(top-k's d)

1. `pivots` computes C and M of every tile at 32 distances, the pivots. They are fixed differences of logits before the
   division by the temperature, because models' logits have similar ranges. They are dense near the greatest logit,
   where cuts usually lie.
2. `brackets` adds up C and M over the tiles and finds the two pivots around each cut: the cut's bracket. The exact
   top-k cut is not known yet, so only bounds of M at this cut are. Top-p's bracket is wide enough for both bounds.
3. `collect` lists the tokens in each bracket, in the order of token ids. The tiles' counts determine where each tile
   writes.
4. `threshold` (`threshold.py`) finds the exact cut by a 16-way search over distances. The search counts tokens in the
   bracket's list, which usually has some hundred. A bracket of more than CAPACITY tokens has no list. Its tokens are
   counted in the row itself, which is slower and gives the same counts.

Sums of probabilities are float32, in an order that depends only on the size of the vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.sampling.columns import TEMPERATURE, TOP_K, TOP_P, integer, is_shaped, number
from services.worker.ops.triton.sampling.rows import (
    FARTHEST,
    distance,
    greatest_of,
    load_logits,
    min_p_distance,
    scaled,
)

PIVOTS = tl.constexpr(32)
# Most tokens in a bracket's list.
CAPACITY = tl.constexpr(16384)
# Number of tokens that one iteration compares with all pivots.
CHUNK = tl.constexpr(128)

# Columns of `found`, int32 [n, FOUND]: five for top-k's bracket, the same five for top-p's, then MASS.
FROM = tl.constexpr(0)  # the least distance in the bracket
TO = tl.constexpr(1)  # the greatest distance in the bracket
ABOVE_COUNT = tl.constexpr(2)  # number of tokens nearer than FROM
ABOVE_MASS = tl.constexpr(3)  # probability mass of the tokens nearer than FROM, a float
SIZE = tl.constexpr(4)  # number of tokens in the bracket
NO_CUT = tl.constexpr(-1)  # the value of SIZE if there is no cut; the bracket's other columns are then unspecified
BRACKET = tl.constexpr(5)
MASS = tl.constexpr(10)  # probability mass of all tokens that min-p keeps, a float
FOUND = tl.constexpr(12)


@triton.jit
def cuts(columns, slot):
    """Returns whether the slot's sequence uses top-k or top-p, at a temperature above 0."""
    top = (integer(columns, slot, TOP_K) > 0) | (number(columns, slot, TOP_P) < 1.0)
    return top & (number(columns, slot, TEMPERATURE) > 0.0)


@triton.jit
def pivot(index, columns, slot):
    """Returns the distance of each pivot in `index`. The distance of the last pivot is FARTHEST, so every token with a
    finite x is within the last pivot."""
    raw = (index * (index + 16)).to(tl.float32) * 0.015625
    at = distance(tl.div_rn(raw, number(columns, slot, TEMPERATURE)))
    return tl.where(index == PIVOTS - 1, FARTHEST, tl.minimum(at, FARTHEST))


@triton.jit(do_not_specialize=["tiles"])
def pivots_kernel(
    logits,
    logits_stride,
    columns,
    slots,
    mask_rows,
    shaped,
    peaks,
    counts,  # int32 [n, tiles, PIVOTS], written
    masses,  # float32 [n, tiles, PIVOTS], written
    vocab_size,
    tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,  # tiles, padded to a power of two
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        if cuts(columns, slot):
            greatest = greatest_of(peaks, row, tiles, TILES)
            in_scratch = is_shaped(columns, slot, tl.load(mask_rows + row))
            kept = min_p_distance(columns, slot)
            index = tl.arange(0, PIVOTS)
            limits = tl.minimum(pivot(index, columns, slot), kept)[:, None]
            count = tl.zeros([PIVOTS, CHUNK], tl.int32)
            mass = tl.zeros([PIVOTS, CHUNK], tl.float32)
            for start in range(0, tl.minimum(vocab_size - tile * TILE, TILE), CHUNK):
                ids = tile * TILE + start + tl.arange(0, CHUNK)
                y = load_logits(logits, logits_stride, shaped, vocab_size, row, in_scratch, ids, vocab_size)
                x = scaled(y, greatest, columns, slot)
                near = distance(x)[None, :] <= limits
                count += near.to(tl.int32)
                mass += tl.where(near, tl.exp(x)[None, :], 0.0)
            at = (row * tiles + tile) * PIVOTS + index
            tl.store(counts + at, tl.sum(count, 1))
            tl.store(masses + at, tl.sum(mass, 1))


@triton.jit
def bracket(found, offsets, count_table, count, mass, index, first, last, columns, slot, tile_at, at):
    """Stores in `found` the bracket from pivot `first` - 1, exclusive, to pivot `last`, inclusive. Stores in `offsets`
    the index in the bracket's list at which each tile's tokens begin."""
    beyond = index == first - 1  # the pivot before the bracket
    begin = tl.sum(tl.where(beyond, pivot(index, columns, slot) + 1, 0), 0)
    tl.store(found + FROM, begin)
    tl.store(found + TO, tl.sum(tl.where(index == last, pivot(index, columns, slot), 0), 0))
    above = tl.sum(tl.where(beyond, count, 0), 0)
    tl.store(found + ABOVE_COUNT, above)
    tl.store(found + ABOVE_MASS, tl.sum(tl.where(beyond, mass, 0.0), 0).to(tl.int32, bitcast=True))
    tl.store(found + SIZE, tl.sum(tl.where(index == last, count, 0), 0) - above)
    in_tile = tl.sum(count_table * ((index == last).to(tl.int32) - beyond.to(tl.int32))[None, :], 1)
    tl.store(offsets + at, tl.cumsum(in_tile, 0) - in_tile, mask=tile_at)


@triton.jit(do_not_specialize=["tiles"])
def brackets_kernel(
    columns,
    slots,
    counts,
    masses,
    found,  # int32 [n, FOUND], written
    offsets,  # int32 [n, 2, tiles], written: index of each tile's first token in top-k's list and in top-p's list
    tiles,
    TILES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        if cuts(columns, slot):
            at, index = tl.arange(0, TILES), tl.arange(0, PIVOTS)
            table = (row * tiles + at[:, None]) * PIVOTS + index[None, :]
            count_table = tl.load(counts + table, mask=(at < tiles)[:, None], other=0)
            count = tl.sum(count_table, 0)
            mass = tl.sum(tl.load(masses + table, mask=(at < tiles)[:, None], other=0.0), 0)
            total = tl.sum(tl.where(index == PIVOTS - 1, mass, 0.0), 0)
            found += row * FOUND
            offsets += row * 2 * tiles
            tl.store(found + MASS, total.to(tl.int32, bitcast=True))
            k, p = integer(columns, slot, TOP_K), number(columns, slot, TOP_P)
            least, most = total, total  # bounds of M at top-k's cut
            if (k > 0) & (k < tl.sum(tl.where(index == PIVOTS - 1, count, 0), 0)):
                first = tl.min(tl.where(count >= k, index, PIVOTS - 1), 0)
                bracket(found, offsets, count_table, count, mass, index, first, first, columns, slot, at < tiles, at)
                least = tl.sum(tl.where(index == first - 1, mass, 0.0), 0)
                most = tl.sum(tl.where(index == first, mass, 0.0), 0)
            else:
                tl.store(found + SIZE, NO_CUT)
            if p < 1.0:
                first = tl.min(tl.where(mass >= p * least, index, PIVOTS - 1), 0)
                last = tl.min(tl.where(mass >= p * most, index, PIVOTS - 1), 0)
                bracket(
                    found + BRACKET, offsets + tiles, count_table, count, mass, index, first, last, columns, slot,
                    at < tiles, at,
                )  # fmt: skip
            else:
                tl.store(found + BRACKET + SIZE, NO_CUT)


@triton.jit
def append(lists, found, offsets, tile, x, near):
    """Appends tokens to a bracket's list: the x of each of the tile's tokens whose distance lies in the bracket. near:
    distances of the tile's tokens."""
    size = tl.load(found + SIZE)
    if (size > 0) & (size <= CAPACITY):
        inside = (near >= tl.load(found + FROM)) & (near <= tl.load(found + TO))
        at = tl.load(offsets + tile) + tl.cumsum(inside.to(tl.int32), 0) - 1
        tl.store(lists + at, x, mask=inside)


@triton.jit(do_not_specialize=["tiles"])
def collect_kernel(
    logits,
    logits_stride,
    columns,
    slots,
    mask_rows,
    shaped,
    peaks,
    found,
    offsets,
    lists,  # float32 [n, 2, CAPACITY], written: x of the tokens in top-k's bracket, and in top-p's
    vocab_size,
    tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        if cuts(columns, slot):
            greatest = greatest_of(peaks, row, tiles, TILES)
            in_scratch = is_shaped(columns, slot, tl.load(mask_rows + row))
            ids = tile * TILE + tl.arange(0, TILE)
            y = load_logits(logits, logits_stride, shaped, vocab_size, row, in_scratch, ids, vocab_size)
            x = scaled(y, greatest, columns, slot)
            near = tl.where(distance(x) <= min_p_distance(columns, slot), distance(x), FARTHEST + 1)
            found += row * FOUND
            offsets += row * 2 * tiles
            lists += row * 2 * CAPACITY
            append(lists, found, offsets, tile, x, near)
            append(lists + CAPACITY, found + BRACKET, offsets + tiles, tile, x, near)
