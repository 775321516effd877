"""Gumbel noise from a counter, as `Ops.sample_gumbel` defines it, for a tile of tokens.

Philox4x32-10 (Salmon et al., 2011) gives four words, one for each of four consecutive tokens. Its key is (seed low,
seed high), and its counter is (position, choice index, token id // 4, 0). With u = (word + 0.5) · 2⁻³², a token's noise
is -log(-log1p(-u)) (Gumbel, 1954, by inversion; Maddison et al., 2014).

The inner term e = -log1p(-u) is computed in float32, in one of two ways. If u is below 1/16, 1 - u would lose
precision, and the tokens that win usually have such a u. For these, e is the sum of the series of -log1p(-u) up to u⁶,
with a relative error below 1e-8. For greater u, e is -log(1 - u), with 1 - u computed as (2³² - 1 - word + 0.5) · 2⁻³².
Both ways give e within a few units in the last place, so the noise is within 2e-6 of the exact noise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.sampling.columns import CHOICE, SEED, integer

_UNIT = tl.constexpr(2.0**-32)


@triton.jit
def words(columns, slot, position, first_token, TILE: tl.constexpr):
    """Returns the random words of Philox, uint32 [TILE], for the TILE tokens from first_token (a multiple of 4) on."""
    low = integer(columns, slot, SEED).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = integer(columns, slot, SEED + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    group = first_token // 4 + tl.arange(0, TILE // 4)
    zero = group * 0
    a, b, c, d = tl.philox((high << 32) | low, zero + position, zero + integer(columns, slot, CHOICE), group, zero)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [TILE])


@triton.jit
def gumbel(word):
    """Returns float32 noise from uint32 words."""
    u = (word.to(tl.float32) + 0.5) * _UNIT
    rest = ((0xFFFFFFFF - word).to(tl.float32) + 0.5) * _UNIT  # 1 - u
    series = u * (1 + u * (0.5 + u * (1 / 3 + u * (0.25 + u * (0.2 + u * (1 / 6))))))
    return -tl.log(tl.where(u < 0.0625, series, -tl.log(rest)))
