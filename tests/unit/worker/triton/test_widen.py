"""Bytes and nibbles to floats, all of them, in the instructions that GPUs run."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.widen import from_bytes, from_fp8_pages, from_nibbles, pages_factor

DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def nibbles_kernel(words, zeros, out, DTYPE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    rows, lanes = tl.arange(0, ROWS)[:, None], tl.arange(0, LANES)[None, :]
    word = tl.load(words + rows * LANES + lanes)
    of_row = (tl.load(zeros + rows), tl.load(zeros + ROWS + rows), tl.load(zeros + 2 * ROWS + rows),
              tl.load(zeros + 3 * ROWS + rows))  # fmt: skip
    first, second, third, fourth = from_nibbles(word, of_row, DTYPE)
    at = out + rows * LANES + lanes
    tl.store(at, first)
    tl.store(at + ROWS * LANES, second)
    tl.store(at + 2 * ROWS * LANES, third)
    tl.store(at + 3 * ROWS * LANES, fourth)


@triton.jit
def bytes_kernel(words, out, DTYPE: tl.constexpr, IS_FP8: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    low, high = from_bytes(tl.load(words + at), DTYPE, IS_FP8)
    tl.store(out + 2 * at, low)
    tl.store(out + 2 * at + 1, high)


@triton.jit
def pages_kernel(words, out, DTYPE: tl.constexpr, NATIVE: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    low, high = from_fp8_pages(tl.load(words + at), DTYPE, NATIVE)
    tl.store(out + 2 * at, low)
    tl.store(out + 2 * at + 1, high)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_nibble_less_every_zero_point_is_exact(device: torch.device, dtype: torch.dtype) -> None:
    rows, lanes = 16, 64
    generator = torch.Generator().manual_seed(1)
    nibbles = torch.randint(0, 16, (4, rows, lanes), generator=generator)
    nibbles[:, :, :16] = torch.arange(16)
    zeros = torch.stack([torch.arange(16).roll(shift) for shift in (0, 3, 7, 11)]).to(torch.uint8)
    words = sum(nibble << 4 * index for index, nibble in enumerate(nibbles))
    assert isinstance(words, Tensor)
    out = torch.full((4, rows, lanes), torch.nan, dtype=dtype, device=device)
    nibbles_kernel[(1,)](words.to(torch.int16).to(device), zeros.to(device), out, DTYPES[dtype], rows, lanes)
    assert torch.equal(out.cpu().long(), nibbles - zeros[:, :, None].long())


@pytest.mark.parametrize("shift", [0, 1], ids=["low and high", "high and low"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_signed_byte_is_exact(device: torch.device, dtype: torch.dtype, shift: int) -> None:
    values = torch.arange(-128, 128).to(torch.int8).roll(shift)
    out = torch.full((256,), torch.nan, dtype=dtype, device=device)
    bytes_kernel[(1,)](values.view(torch.int16).to(device), out, DTYPES[dtype], False, 128)
    assert torch.equal(out.cpu().long(), values.long())


@pytest.mark.parametrize("shift", [0, 1], ids=["low and high", "high and low"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_fp8_number_is_exact(device: torch.device, dtype: torch.dtype, shift: int) -> None:
    codes = torch.arange(256, dtype=torch.uint8).roll(shift)
    out = torch.full((256,), torch.nan, dtype=dtype, device=device)
    bytes_kernel[(1,)](codes.view(torch.int16).to(device), out, DTYPES[dtype], True, 128)
    expected = codes.view(torch.float8_e4m3fn).float()
    expected[codes == 0x7F], expected[codes == 0xFF] = 480.0, -480.0
    assert torch.equal(out.cpu().float(), expected)
    assert torch.equal(out.cpu().float().signbit(), expected.signbit()), "zero has a sign"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_every_number_of_fp8_pages_is_exact_and_no_other_is_finite(
    device: torch.device, dtype: torch.dtype, native: bool
) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    out = torch.zeros(256, dtype=dtype, device=device)
    pages_kernel[(1,)](codes.view(torch.int16).to(device), out, DTYPES[dtype], native, 128)
    expected = codes.view(torch.float8_e4m3fn).double()
    is_number = ~expected.isnan()
    factor = pages_factor(DTYPES[dtype], native)
    assert torch.equal(out.cpu().double()[is_number], expected[is_number] * factor)
    assert not out.cpu()[~is_number].isfinite().any()
