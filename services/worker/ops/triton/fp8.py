"""Converts float32 to fp8 e4m3fn and back with integer arithmetic, because Triton converts to fp8 only from compute
capability 8.9 on.

The format has 1 sign bit, 4 exponent bits (bias 7) and 3 mantissa bits. Its greatest value is 448. It has no
infinities; exponent and mantissa of all ones are NaN (Micikevicius et al., 2022, section 3.1). `to_e4m3` rounds to
nearest, ties to even, like torch. Values beyond the range become ±448, where torch gives NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

GREATEST = tl.constexpr(448.0)
_LEAST_NORMAL = tl.constexpr(2.0**-6)
_REBIAS = tl.constexpr((127 - 7) << 3)
# Adding this to a float32 below 2**-6 leaves the value, rounded to a multiple of 2**-9, in the sum's lowest bits.
_SHIFTER = tl.constexpr(2.0**14)
_SHIFTER_BITS = tl.constexpr(0x46800000)
_NAN = tl.constexpr(0x7F)


@triton.jit
def to_e4m3(x):
    """float32 -> uint8 of the same shape."""
    size = tl.minimum(tl.abs(x), GREATEST)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - _REBIAS
    subnormal = (size + _SHIFTER).to(tl.int32, bitcast=True) - _SHIFTER_BITS
    code = tl.where(size < _LEAST_NORMAL, subnormal, normal)
    code = tl.where(x != x, _NAN, code)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)


@triton.jit
def from_e4m3(code):
    """uint8 -> float32 of the same shape, exactly. The codes of NaN become ±480; weights do not contain them.
    `widen.py` converts to 16-bit floats.

    Moving the bits of exponent and mantissa to their place in float32 gives the value divided by 2**120, also for
    subnormals.
    """
    wide = code.to(tl.uint32)
    return (((wide & 0x80) << 24) | ((wide & 0x7F) << 20)).to(tl.float32, bitcast=True) * 2.0**120
