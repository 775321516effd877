"""Applies logit bias, penalties and token masks in one pass over the logits.

For a token with logit l that occurs c times in the output, the kernel computes y in these steps, in this order (see
docs/sampling.md):

    l += bias
    y = l / r if l > 0 else l · r             r: repetition penalty (Keskar et al., 2019, section 4.1), for tokens
                                              of prompt and output
    y -= [c > 0] · presence;  y -= c · frequency
    y = -inf where the mask's bit is 0        bit t % 32 of word t // 32, as in xgrammar's bitmasks

Rows that use a bias, a penalty or a mask are written to `shaped`, as float32. Later kernels read all other rows from
the model's output. For each tile, the kernel also stores the greatest y and the greatest raw logit. If a raw logit is
NaN or +inf, +inf is stored, which marks the row as invalid.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.sampling.columns import (
    BIAS_ROW,
    COUNTS_ROW,
    FREQUENCY,
    IN_PROMPT,
    PRESENCE,
    REPETITION,
    integer,
    is_shaped,
    number,
)


@triton.jit
def raw_peak(raw):
    """Returns the greatest of the raw logits, or +inf if one of them is NaN."""
    return tl.max(tl.where(raw != raw, float("inf"), raw), 0)


@triton.jit(do_not_specialize=["tiles", "mask_words"])
def shape_kernel(
    logits,  # [n, vocab]
    logits_stride,
    columns,  # int32 [max_num_seqs, WIDTH]
    slots,  # int32 [n]; -1: an unused row
    mask_rows,  # int32 [n], row of `masks`; -1: no mask
    counts,  # int32 [pool, vocab]
    biases,  # float32 [pool, vocab]
    masks,  # int32 [m, mask_words]
    shaped,  # float32 [n, vocab]
    raw_peaks,  # float32 [n, tiles]
    peaks,  # float32 [n, tiles], of y
    vocab_size,
    tiles,
    mask_words,
    TILE: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        ids = tile * TILE + tl.arange(0, TILE)
        inside = ids < vocab_size
        y = tl.load(logits + row * logits_stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(raw_peaks + row * tiles + tile, raw_peak(y))
        mask_row = tl.load(mask_rows + row)
        bias_row = integer(columns, slot, BIAS_ROW).to(tl.int64)
        if bias_row >= 0:
            y += tl.load(biases + bias_row * vocab_size + ids, mask=inside, other=0.0)
        counts_row = integer(columns, slot, COUNTS_ROW).to(tl.int64)
        if counts_row >= 0:
            entry = tl.load(counts + counts_row * vocab_size + ids, mask=inside, other=0)
            repetition = number(columns, slot, REPETITION)
            penalised = tl.where(y > 0, tl.div_rn(y, repetition), y * repetition)
            y = tl.where(entry != 0, penalised, y)
            count = (entry & (IN_PROMPT - 1)).to(tl.float32)
            y -= tl.where(count > 0, number(columns, slot, PRESENCE), 0.0)
            y -= count * number(columns, slot, FREQUENCY)
        if mask_row >= 0:
            word = tl.load(masks + mask_row.to(tl.int64) * mask_words + ids // 32, mask=inside, other=0)
            y = tl.where((word >> (ids % 32)) & 1 != 0, y, float("-inf"))
        if is_shaped(columns, slot, mask_row):
            tl.store(shaped + row * vocab_size + ids, y, mask=inside)
        tl.store(peaks + row * tiles + tile, tl.max(y, 0))
