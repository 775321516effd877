"""Log probabilities of the sampled token and of the TOP likeliest tokens, under the model's raw distribution, without
a sort.

    log p(t) = l_t - max l - log Σ exp(l - max l)

Each token's logit and id are packed into one int64 key. A likelier token has a greater key; of equally likely tokens,
the one with the lower id has. To find the TOP greatest keys, a kernel takes the greatest key and removes it, TOP times.
`top_tiles` finds them in every tile, and `top_rows` then finds them among the keys from all tiles of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

TOP = 20
# TOP, padded to a power of two.
PLACES = tl.constexpr(32)
NUM_WARPS = 8

_NONE = tl.constexpr(-(1 << 63))
_LAST_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def key(logit, token):
    """Returns an int64 that is greater for a greater logit and, if logits are equal, for a lower id."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)  # -0.0 + 0.0 is 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (token ^ _LAST_ID).to(tl.int64)


@triton.jit
def logit_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def token_of(key):
    return key.to(tl.int32) ^ _LAST_ID


@triton.jit
def greatest_keys(keys, COUNT: tl.constexpr):
    """Returns the COUNT greatest keys, descending: [PLACES], with _NONE in the unused places. keys [m]: all distinct,
    except _NONE."""
    place = tl.arange(0, PLACES)
    found = tl.zeros([PLACES], tl.int64) + _NONE
    for index in range(COUNT):
        greatest = tl.max(keys, 0)
        found = tl.where(place == index, greatest, found)
        keys = tl.where(keys == greatest, _NONE, keys)
    return found


@triton.jit(do_not_specialize=["tiles"])
def top_tiles_kernel(
    logits,  # [n, vocab]
    logits_stride,
    rows,  # int64 [m], rows of the sample that ask for log probabilities
    keys,  # int64 [m, tiles, PLACES], written
    peaks,  # float32 [m, tiles], written
    sums,  # float32 [m, tiles], output: each tile's sum of exp(logit - peak), with the tile's peak
    vocab_size,
    tiles,
    COUNT: tl.constexpr,
    TILE: tl.constexpr,
):
    entry, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    inside = ids < vocab_size
    at = logits + tl.load(rows + entry) * logits_stride + ids
    logit = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    peak = tl.max(logit, 0)
    tl.store(peaks + entry * tiles + tile, peak)
    weights = tl.where(logit > float("-inf"), tl.exp(logit - peak), 0.0)
    tl.store(sums + entry * tiles + tile, tl.sum(weights, 0))
    found = greatest_keys(tl.where(inside, key(logit, ids), _NONE), COUNT)
    tl.store(keys + (entry * tiles + tile) * PLACES + tl.arange(0, PLACES), found)


@triton.jit(do_not_specialize=["tiles"])
def top_rows_kernel(
    logits,
    logits_stride,
    rows,
    drawn,  # int64 [n]
    keys,
    peaks,
    sums,
    logprobs,  # float32 [m], written
    top_tokens,  # int64 [m, COUNT], written
    top_logprobs,  # float32 [m, COUNT], written
    normalizers,  # float32 [m, 2], written: max l, and log Σ exp(l - max l)
    tiles,
    COUNT: tl.constexpr,
    TILES: tl.constexpr,
):
    entry = tl.program_id(0).to(tl.int64)
    at, place = tl.arange(0, TILES), tl.arange(0, PLACES)
    peak = tl.load(peaks + entry * tiles + at, mask=at < tiles, other=float("-inf"))
    greatest = tl.max(peak, 0)
    total = tl.load(sums + entry * tiles + at, mask=at < tiles, other=0.0)
    log_sum = tl.log(tl.sum(tl.where(peak > float("-inf"), total * tl.exp(peak - greatest), 0.0), 0))
    row = tl.load(rows + entry)
    token = tl.load(logits + row * logits_stride + tl.load(drawn + row)).to(tl.float32)
    tl.store(logprobs + entry, (token - greatest) - log_sum)
    tl.store(normalizers + 2 * entry, greatest)
    tl.store(normalizers + 2 * entry + 1, log_sum)
    table = (entry * tiles + at[:, None]) * PLACES + place[None, :]
    held = (at < tiles)[:, None] & (place < COUNT)[None, :]
    found = greatest_keys(tl.reshape(tl.load(keys + table, mask=held, other=_NONE), [TILES * PLACES]), COUNT)
    tl.store(top_tokens + entry * COUNT + place, token_of(found).to(tl.int64), mask=place < COUNT)
    tl.store(top_logprobs + entry * COUNT + place, (logit_of(found) - greatest) - log_sum, mask=place < COUNT)
