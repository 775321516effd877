"""Samples a token: argmax of x + Gumbel noise over the tokens that the cuts keep, or argmax of y at temperature 0
(x and y as in `rows.py`).

Ties go to the lowest id; NaN is skipped. `draw` writes each tile's best token and its score to scratch memory. `finish`
takes the best token of the row, and writes the state for the next step: the slot's last token, and the token's count if
penalties are in use.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.sampling.columns import COUNTS_ROW, TEMPERATURE, integer, is_shaped, number
from services.worker.ops.triton.sampling.cuts import cuts
from services.worker.ops.triton.sampling.gumbel import gumbel, words
from services.worker.ops.triton.sampling.rows import distance, greatest_of, load_logits, min_p_distance, scaled
from services.worker.ops.triton.sampling.shape import raw_peak


@triton.jit(do_not_specialize=["tiles"])
def draw_kernel(
    logits,  # [n, vocab]
    logits_stride,
    columns,  # int32 [max_num_seqs, WIDTH]
    slots,  # int32 [n]
    positions,  # int32 [n], of the token to be drawn
    mask_rows,  # int32 [n]
    shaped,  # float32 [n, vocab]
    raw_peaks,  # float32 [n, tiles], written if GREEDY
    peaks,  # float32 [n, tiles], read unless GREEDY
    cut,  # int32 [n], read if CUTS
    scores,  # float32 [n, tiles], written
    tokens,  # int32 [n, tiles], written
    vocab_size,
    tiles,
    GREEDY: tl.constexpr,  # all rows take the argmax of the unchanged logits, so no other kernel ran before
    CUTS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        ids = tile * TILE + tl.arange(0, TILE)
        if GREEDY:
            score = load_logits(logits, logits_stride, shaped, vocab_size, row, False, ids, vocab_size)
            tl.store(raw_peaks + row * tiles + tile, raw_peak(score))
        else:
            in_scratch = is_shaped(columns, slot, tl.load(mask_rows + row))
            score = load_logits(logits, logits_stride, shaped, vocab_size, row, in_scratch, ids, vocab_size)
            if number(columns, slot, TEMPERATURE) > 0.0:
                x = scaled(score, greatest_of(peaks, row, tiles, TILES), columns, slot)
                kept = min_p_distance(columns, slot)
                if CUTS:
                    if cuts(columns, slot):
                        kept = tl.minimum(kept, tl.load(cut + row))
                noise = gumbel(words(columns, slot, tl.load(positions + row), tile * TILE, TILE))
                score = tl.where(distance(x) <= kept, x + noise, float("-inf"))
        score = tl.where((score == score) & (ids < vocab_size), score, float("-inf"))
        best = tl.max(score, 0)
        tl.store(scores + row * tiles + tile, best)
        tl.store(tokens + row * tiles + tile, tl.min(tl.where(score == best, ids, vocab_size), 0))


@triton.jit(do_not_specialize=["tiles"])
def finish_kernel(
    columns,
    slots,
    raw_peaks,
    scores,
    tokens,
    counts,  # int32 [pool, vocab]
    drawn,  # int64 [n], output: the drawn tokens; 0 for rows that are not valid
    valid,  # bool [n] as uint8, output
    last_tokens,  # int64 [max_num_seqs], written for the rows' slots
    vocab_size,
    tiles,
    TILES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    token = tl.zeros([], tl.int32)
    is_valid = slot >= 0
    if slot >= 0:
        at = tl.arange(0, TILES)
        score = tl.load(scores + row * tiles + at, mask=at < tiles, other=float("-inf"))
        best = tl.max(score, 0)
        ids = tl.load(tokens + row * tiles + at, mask=at < tiles, other=vocab_size)
        greatest = greatest_of(raw_peaks, row, tiles, TILES)
        # If a logit is NaN or +inf, `greatest` is +inf. If the mask allows no token, `best` is -inf.
        is_valid = (greatest < float("inf")) & (best > float("-inf"))
        token = tl.where(is_valid, tl.min(tl.where(score == best, ids, vocab_size), 0), 0)
        tl.store(last_tokens + slot, token.to(tl.int64))
        counts_row = integer(columns, slot, COUNTS_ROW).to(tl.int64)
        if (counts_row >= 0) & is_valid:
            entry = counts + counts_row * vocab_size + token
            tl.store(entry, tl.load(entry) + 1)
    tl.store(drawn + row, token.to(tl.int64))
    tl.store(valid + row, is_valid.to(tl.uint8))
