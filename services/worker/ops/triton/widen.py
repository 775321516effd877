"""Converts 4- and 8-bit numbers to 16-bit floats exactly, four bytes at a time.

A product that is bound by reading such weights can spend only few instructions on each number. At 4.8 TB/s, each SM of
an H200 receives 18 bytes per cycle, which are 37 numbers of 4 bits. Per cycle, the SM issues four instructions of 32
threads. Triton compiles `(byte & 15).to(tl.bfloat16)` to about seven instructions per number. The functions of this
module keep four bytes in one register, and each operation on a register makes a pair of floats. One instruction (LOP3,
or PRMT for whole bytes) puts two numbers into the low mantissa bits of two floats that are a known power of two. One
more instruction subtracts that power from both floats.

    bfloat16 of the bits 0x4300 | u is 128 + u, for u < 128      float16 of the bits 0x6400 | u is 1024 + u
    int8 v is (v & 0x7F) - (v & 0x80), or (v ^ 0x80) - 128
    e4m3 is its exponent and mantissa, moved to their place in the float, times a power of two (`fp8.py`)

(Kim et al., 2022, "Who Says Elephants Can't Run", section 3.2.) A register holds only one float32, so float32 uses
Triton's own conversions. All instructions exist from compute capability 8.0 on, except the native conversion of fp8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from services.worker.ops.triton.fp8 import from_e4m3


def _asm(*instructions: str) -> tl.constexpr:
    body = "\n".join(f"    {instruction};" for instruction in instructions)
    return tl.constexpr(f"{{\n    .reg .b32 a, b, c;\n    .reg .b16 first, second;\n{body}\n}}")


def _nibbles(kind: str, power: str, one: str) -> tl.constexpr:
    """Returns instructions that turn a register of two 16-bit words into four pairs of floats, lowest bits first. A
    pair has one float of each word. `power`: bits of two floats that are the known power of two (see above); `one`:
    bits of two floats that are 1.0."""
    masked = f"0x000F000F, {power}, 0xEA"  # (a & b) | c
    return _asm(
        "shr.u32 a, $4, 4",
        "shr.u32 b, $4, 8",
        "shr.u32 c, $4, 12",
        *(f"lop3.b32 ${out}, {source}, {masked}" for out, source in enumerate(("$4", "a", "b", "c"))),
        f"mov.b32 a, {one}",
        *(f"fma.rn.{kind} ${out}, ${out}, a, ${5 + out}" for out in range(4)),
    )


def _e4m3(kind: str, shift: int, power: str) -> tl.constexpr:
    """Returns instructions that turn four e4m3 numbers, in a register of two 16-bit words, into two pairs of floats:
    first the low bytes of the words, then their high bytes. `shift`: by how many bits exponent and mantissa move right
    from the high byte of a word to their place in a float. `power`: the number by which the results are multiplied, as
    the bits of two floats."""
    mask = f"0x{0x7F << 8 - shift:04X}" + f"{0x7F << 8 - shift:04X}"
    return _asm(
        f"shl.b32 a, $2, {8 - shift}",
        f"and.b32 a, a, {mask}",
        "shl.b32 b, $2, 8",
        "lop3.b32 $0, b, 0x80008000, a, 0xEA",
        f"shr.u32 a, $2, {shift}",
        f"and.b32 a, a, {mask}",
        "lop3.b32 $1, $2, 0x80008000, a, 0xEA",
        f"mov.b32 b, {power}",
        "mov.b32 c, 0x80008000",  # -0, which changes no product
        f"fma.rn.{kind} $0, $0, b, c",
        f"fma.rn.{kind} $1, $1, b, c",
    )


_NIBBLES_BF16 = _nibbles("bf16x2", "0x43004300", "0x3F803F80")
_NIBBLES_FP16 = _nibbles("f16x2", "0x64006400", "0x3C003C00")
_INT8_BF16 = _asm(
    "shr.u32 c, $2, 8",
    "lop3.b32 $0, $2, 0x007F007F, 0x43004300, 0xEA",
    "lop3.b32 a, $2, 0x00800080, 0x43004300, 0xEA",
    "lop3.b32 $1, c, 0x007F007F, 0x43004300, 0xEA",
    "lop3.b32 b, c, 0x00800080, 0x43004300, 0xEA",
    "mov.b32 c, 0xBF80BF80",  # -1
    "fma.rn.bf16x2 $0, a, c, $0",
    "fma.rn.bf16x2 $1, b, c, $1",
)
_INT8_FP16 = _asm(
    "xor.b32 a, $2, 0x80808080",
    "prmt.b32 $0, a, 0x64646464, 0x4240",
    "prmt.b32 $1, a, 0x64646464, 0x4341",
    "mov.b32 c, 0xE480E480",  # -1152
    "add.rn.f16x2 $0, $0, c",
    "add.rn.f16x2 $1, $1, c",
)
# The factor is 36864, so that only NaN overflows. The greatest number, 448, reads as 1.75 when its bits are moved into
# a float16, and becomes 64512 = 448 · 144. NaN reads as 1.875 and becomes infinite.
_E4M3_PAGES = _e4m3("f16x2", 1, "0x78807880")
_E4M3_PAGES_NATIVE = _asm(
    "mov.b32 {first, second}, $2",
    "cvt.rn.f16x2.e4m3x2 a, first",
    "cvt.rn.f16x2.e4m3x2 b, second",
    "prmt.b32 $0, a, b, 0x5410",
    "prmt.b32 $1, a, b, 0x7632",
)
_E4M3_FP16 = _e4m3("f16x2", 1, "0x5C005C00")  # multiplies by 2^8
_E4M3_BF16 = _e4m3("bf16x2", 4, "0x7B807B80")  # multiplies by 2^120
# Register constraints of the inline assembly: the four results ("=&": they share no register with operands), the words,
# then for each result a register with the number that is added to it.
_FROM_NIBBLES: tl.constexpr = tl.constexpr("=&r,=&r,=&r,=&r,r,r,r,r,r")
_FOUR_FP16: tl.constexpr = tl.constexpr((tl.float16,) * 4)
_FOUR_BF16: tl.constexpr = tl.constexpr((tl.bfloat16,) * 4)
_FROM_BYTES: tl.constexpr = tl.constexpr("=&r,=&r,r")


@triton.jit
def from_nibbles(word, zeros, dtype: tl.constexpr):
    """Returns four tensors: nibble i of an int16, minus zeros[i], with the lowest nibble first. dtype: type of the
    results, a float of 16 or 32 bits. zeros: four uint8 tensors of values up to 15, in shapes that broadcast."""
    if dtype == tl.float32:
        bits = word.to(tl.int32)
        first = (bits & 15).to(dtype) - zeros[0].to(dtype)
        second = ((bits >> 4) & 15).to(dtype) - zeros[1].to(dtype)
        third = ((bits >> 8) & 15).to(dtype) - zeros[2].to(dtype)
        fourth = ((bits >> 12) & 15).to(dtype) - zeros[3].to(dtype)
    else:
        is_fp16: tl.constexpr = dtype == tl.float16
        power: tl.constexpr = 1024 if is_fp16 else 128
        below_0, below_1 = _minus(power, zeros[0], dtype), _minus(power, zeros[1], dtype)
        below_2, below_3 = _minus(power, zeros[2], dtype), _minus(power, zeros[3], dtype)
        operands = [word, below_0, below_1, below_2, below_3]
        if is_fp16:
            first, second, third, fourth = tl.inline_asm_elementwise(
                _NIBBLES_FP16, _FROM_NIBBLES, operands, _FOUR_FP16, is_pure=True, pack=2
            )
        else:
            first, second, third, fourth = tl.inline_asm_elementwise(
                _NIBBLES_BF16, _FROM_NIBBLES, operands, _FOUR_BF16, is_pure=True, pack=2
            )
    return first, second, third, fourth


@triton.jit
def _minus(power: tl.constexpr, zero, dtype: tl.constexpr):
    return (-power - zero.to(tl.float32)).to(dtype)


@triton.jit
def from_bytes(word, dtype: tl.constexpr, IS_FP8: tl.constexpr):
    """Returns the low and the high byte of an int16, read as int8 or as fp8 e4m3fn. dtype: type of the results, a float
    of 16 or 32 bits. The codes of NaN become ±480; weights do not contain them."""
    if dtype == tl.float32:
        if IS_FP8:
            low, high = from_e4m3((word & 0xFF).to(tl.uint8)), from_e4m3((word >> 8).to(tl.uint8))
        else:
            low, high = word.to(tl.int8).to(dtype), (word >> 8).to(dtype)
    elif dtype == tl.float16:
        low, high = tl.inline_asm_elementwise(
            _E4M3_FP16 if IS_FP8 else _INT8_FP16, _FROM_BYTES, [word], (tl.float16, tl.float16), is_pure=True, pack=2
        )
    else:
        low, high = tl.inline_asm_elementwise(
            _E4M3_BF16 if IS_FP8 else _INT8_BF16, _FROM_BYTES, [word], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    return low, high


@triton.jit
def from_fp8_pages(word, dtype: tl.constexpr, NATIVE: tl.constexpr):
    """Reads the two bytes of each int16 as fp8 e4m3fn. Returns the low bytes and the high bytes, each multiplied by
    `pages_factor`, as `dtype` (float16 or float32). NaN becomes NaN or infinite. `NATIVE`: whether the GPU has an
    instruction that converts fp8 (from compute capability 8.9 on)."""
    if dtype == tl.float32:
        low, high = _with_nan((word & 0xFF).to(tl.uint8)), _with_nan((word >> 8).to(tl.uint8))
    else:
        low, high = tl.inline_asm_elementwise(
            _E4M3_PAGES_NATIVE if NATIVE else _E4M3_PAGES, _FROM_BYTES, [word], (tl.float16, tl.float16), is_pure=True,
            pack=2,
        )  # fmt: skip
    return low, high


@triton.jit
def _with_nan(code):
    """uint8 -> float32."""
    return tl.where(code & 0x7F == 0x7F, float("nan"), from_e4m3(code))


@triton.constexpr_function
def pages_factor(dtype: tl.dtype, native: bool) -> float:
    """Returns the factor by which the results of `from_fp8_pages` exceed the fp8 values. A kernel must divide by it."""
    return 1.0 if dtype == tl.float32 or native else 144.0
