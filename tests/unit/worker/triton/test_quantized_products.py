"""Products with quantized weights: every kind against float64 on a grid of shapes, and bit for bit against itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.eight_bit_weights import EightBitLayout, eight_bit_weights
from services.worker.ops.triton.four_bit import FourBitLayout, four_bit
from services.worker.ops.triton.ops import TritonOps
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from tests.unit.worker.triton.quantized import ALL, WEIGHTS_ALONE, assert_is_product
from tests.unit.worker.triton.random_tensors import draw

MARGIN = 64
ROWS = [1, 2, 15, 16, 17, 32, 33, 64, 65, 130]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What kernels write to is full of NaN (of the greatest integer), and nothing may change beyond its ends."""
    empty, wholes = torch.empty, []

    def poison(shape: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        size = torch.Size([shape] if isinstance(shape, int) else shape)
        value = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
        whole = torch.full((size.numel() + 2 * MARGIN,), value, dtype=dtype, device=device)
        wholes.append(whole)
        return whole[MARGIN : MARGIN + size.numel()].view(size)

    monkeypatch.setattr(torch, "empty", poison)
    yield
    monkeypatch.setattr(torch, "empty", empty)
    assert wholes
    for whole in wholes:
        for end in (whole[:MARGIN], whole[-MARGIN:]):
            assert (end.isnan() if end.is_floating_point() else end == torch.iinfo(end.dtype).max).all()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("n", "k", "m"), [
    (70, 320, 1), (1, 640, 2), (64, 640, 15), (130, 320, 16), (33, 320, 17), (36, 640, 33), (20, 640, 64),
    (130, 640, 100), (40, 320, 130),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products(device: torch.device, kind: str, dtype: torch.dtype, n: int, k: int, m: int) -> None:
    """Tiles that are not full, steps of K that are not, several splits, a bias in every other."""
    if kind.endswith("128 in bfloat16"):
        k = 2 * 320  # 320 inputs are no groups of 128
    weight = ALL[kind](draw(n, k, dtype=torch.float32, device=device, seed=1))
    x = draw(m, k, dtype=dtype, device=device) / k**0.5
    bias = draw(n, dtype=dtype, device=device, seed=2) if m % 2 else None
    got = TritonOps(device, dtype).linear(weight, bias)(x)
    assert got.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 1e-3
    assert_is_product(got, x, weight, bias, tolerance, tolerance)


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp8 x fp8", "int4"])
@pytest.mark.parametrize("k", [16, 100, 520])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_inputs_that_are_no_whole_steps(device: torch.device, kind: str, k: int, dtype: torch.dtype) -> None:
    weight = ALL[kind](draw(20, k, dtype=torch.float32, device=device, seed=1))
    x = draw(3, k, dtype=dtype, device=device) / k**0.5
    got = TritonOps(device, dtype).linear(weight)(x)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-3
    assert_is_product(got, x, weight, None, tolerance, tolerance)


@pytest.mark.parametrize("m", ROWS)
def test_sums_of_integers_have_the_bits_of_the_reference(device: torch.device, m: int) -> None:
    weight = Int8Weight.quantize(draw(30, 1100, dtype=torch.float32, device=device, seed=1), True)
    x = draw(m, 1100, dtype=torch.float32, device=device)
    expected = ReferenceOps(device, torch.float32).linear(weight)(x)
    assert torch.equal(TritonOps(device, torch.float32).linear(weight)(x), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_every_number_of_fp8_is_read_exactly(device: torch.device, dtype: torch.dtype) -> None:
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8, device=device)
    values = codes.view(torch.float8_e4m3fn)[:, None].expand(-1, 16).contiguous()
    weight = Fp8Weight(values, torch.ones(len(values), device=device), quantize_activations=False)
    x = torch.eye(16, dtype=dtype, device=device)[:1]
    assert torch.equal(TritonOps(device, dtype).linear(weight)(x)[0], values[:, 0].to(dtype))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_row_has_the_same_bits_alone_and_in_any_crowd(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    """A K long enough for few rows to be split, were it not for this mode."""
    weight = ALL[kind](draw(20, 1280, dtype=torch.float32, device=device, seed=1))
    linear = TritonOps(device, dtype, batch_invariant=True).linear(weight)
    x = draw(70, 1280, dtype=dtype, device=device)
    together = linear(x)
    for rows in (slice(0, 1), slice(3, 19), slice(40, 57)):
        assert torch.equal(linear(x[rows]), together[rows])


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("m", [3, 70])
def test_what_is_not_a_number_stays_in_its_row(device: torch.device, kind: str, m: int) -> None:
    weight = ALL[kind](draw(20, 640, dtype=torch.float32, device=device, seed=1))
    linear = TritonOps(device, torch.float32).linear(weight)
    x = draw(m, 640, dtype=torch.float32, device=device)
    clean = linear(x)
    x[1, 600] = torch.nan
    got = linear(x)
    assert got[1].isnan().all()
    others = torch.arange(m) != 1
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_what_follows_a_row_that_is_no_whole_steps_is_not_read(device: torch.device, kind: str) -> None:
    weight = ALL[kind](draw(20, 100, dtype=torch.float32, device=device, seed=1))
    linear = TritonOps(device, torch.float32).linear(weight)
    x = draw(3, 100, dtype=torch.float32, device=device)
    clean = linear(x)
    x[1] = torch.nan
    assert torch.equal(linear(x)[0], clean[0])


@pytest.mark.parametrize("m", [3, 70])
def test_scales_past_the_last_group_are_not_read(device: torch.device, m: int) -> None:
    """The last step has columns that no group has: groups of 48, steps of 32 or 64. Bits that are all ones are NaN."""
    matrix = draw(20, 240, dtype=torch.float32, device=device)
    x = draw(m, 240, dtype=torch.float16, device=device, seed=1) / 16
    four = FourBitLayout.of(Int4Weight.quantize(matrix.half(), 48), torch.float16)
    eight = EightBitLayout.of(Int8Weight.quantize(matrix, False, 48), torch.float16)
    words = torch.cat((four.words, torch.full_like(four.words, -1)))[: len(four.words)]
    scales = torch.cat((eight.scales, torch.full_like(eight.scales, torch.nan)))[: len(eight.scales)]
    assert torch.equal(four_bit(x, replace(four, words=words), None), four_bit(x, four, None))
    assert torch.equal(eight_bit_weights(x, replace(eight, scales=scales), None), eight_bit_weights(x, eight, None))


@pytest.mark.parametrize("kind", WEIGHTS_ALONE)
def test_rows_may_be_a_slice_of_wider_ones(device: torch.device, kind: str) -> None:
    linear = TritonOps(device, torch.float32).linear(
        WEIGHTS_ALONE[kind](draw(8, 640, dtype=torch.float32, device=device))
    )
    x = draw(3, 1000, dtype=torch.float32, device=device, seed=1)
    assert torch.equal(linear(x[:, 8:648]), linear(x[:, 8:648].contiguous()))
    with pytest.raises(ValueError, match="contiguous rows"):
        linear(x)


def test_no_rows(device: torch.device) -> None:
    for make in ALL.values():
        weight = make(draw(8, 640, dtype=torch.float32, device=device))
        linear = TritonOps(device, torch.float32).linear(weight)
        assert linear(torch.zeros(0, 640, device=device)).shape == (0, 8)
