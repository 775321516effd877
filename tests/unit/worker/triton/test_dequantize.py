"""Products of many rows: weights of 4 or 8 bits are turned into floats first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.ops.triton import dequantize as module
from services.worker.ops.triton import quantized_linear
from services.worker.ops.triton.dequantize import DEQUANTIZED_ROWS, Scratch, dequantize, outputs_at_a_time
from services.worker.ops.triton.eight_bit_weights import EightBitLayout
from services.worker.ops.triton.four_bit import FourBitLayout
from services.worker.ops.triton.ops import TritonOps
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.weight import QuantizedWeight
from tests.unit.worker.triton.quantized import WEIGHTS_ALONE
from tests.unit.worker.triton.random_tensors import assert_guards_intact, draw, guarded

ROWS = DEQUANTIZED_ROWS + 3


def lay_out(weight: Any, dtype: torch.dtype) -> FourBitLayout | EightBitLayout:
    if isinstance(weight, Int4Weight):
        return FourBitLayout.of(weight, dtype)
    return EightBitLayout.of(weight, dtype)


def in_floats(weight: Any, dtype: torch.dtype, ordered: bool) -> Tensor:
    """The weight, rounded once. `ordered`: its columns in the order of the inputs, else as they are stored."""
    if getattr(weight, "input_order", None) is not None and not ordered:
        weight = replace(weight, input_order=None)
    floats: Tensor = weight.dequantize().to(dtype)
    return floats


def assert_rounded(got: Tensor, expected: Tensor) -> None:
    """Triton's interpreter rounds to bfloat16 by cutting off."""
    if got.dtype is torch.bfloat16 and not got.is_cuda:
        torch.testing.assert_close(got, expected, rtol=torch.finfo(got.dtype).eps, atol=0)
    else:
        assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", WEIGHTS_ALONE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_element_is_rounded_once(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    """Outputs from the middle of the weight; their number is no multiple of a tile's."""
    weight = WEIGHTS_ALONE[kind](draw(150, 640, dtype=torch.float32, device=device))
    into, whole = guarded(77, 640, dtype=dtype, device=device)
    dequantize(lay_out(weight, dtype), 60, into)
    assert_rounded(into, in_floats(weight, dtype, ordered=False)[60:137])
    assert_guards_intact(whole)


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("k", [16, 100, 520])
def test_inputs_that_are_no_whole_steps(device: torch.device, kind: str, k: int) -> None:
    weight = WEIGHTS_ALONE[kind](draw(20, k, dtype=torch.float32, device=device))
    into, whole = guarded(20, k, dtype=torch.float16, device=device)
    dequantize(lay_out(weight, torch.float16), 0, into)
    assert_rounded(into, in_floats(weight, torch.float16, ordered=False))
    assert_guards_intact(whole)


@pytest.mark.parametrize("group", [16, 48])
def test_steps_with_several_groups_and_none(device: torch.device, group: int) -> None:
    """The last step has columns that no group has. Scales past the last group are all ones, which is NaN."""
    weight = Int4Weight.quantize(draw(20, 240, dtype=torch.float16, device=device), group)
    layout = FourBitLayout.of(weight, torch.float16)
    words = torch.cat((layout.words, torch.full_like(layout.words, -1)))[: len(layout.words)]
    into, whole = guarded(20, 240, dtype=torch.float16, device=device)
    dequantize(replace(layout, words=words), 0, into)
    assert_rounded(into, in_floats(weight, torch.float16, ordered=False))
    assert_guards_intact(whole)


@pytest.mark.parametrize("kind", ["fp8", "int8, groups of 160", "int4, groups of 32", "int4, act-order"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("max_elements", [module.MAX_ELEMENTS, 64 * 640])
def test_many_rows_are_multiplied_by_the_rounded_weight(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kind: str, has_bias: bool, max_elements: int
) -> None:
    """Rows may be a slice of wider ones. A large weight is dequantized in parts, here three."""
    monkeypatch.setattr(module, "MAX_ELEMENTS", max_elements)
    weight = WEIGHTS_ALONE[kind](draw(150, 640, dtype=torch.float32, device=device, seed=1))
    x = draw(ROWS, 700, dtype=torch.float16, device=device)[:, 8:648] / 640**0.5
    bias = draw(150, dtype=torch.float16, device=device, seed=2) if has_bias else None
    got = TritonOps(device, torch.float16).linear(weight, bias)(x)
    exact = x.double() @ in_floats(weight, torch.float16, ordered=True).double().t()
    torch.testing.assert_close(got.double(), exact if bias is None else exact + bias.double(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("dtype", "batch_invariant", "rows", "expected"),
    [
        (torch.float16, False, DEQUANTIZED_ROWS, True),
        (torch.bfloat16, False, DEQUANTIZED_ROWS, True),
        (torch.float16, False, DEQUANTIZED_ROWS - 1, False),
        (torch.float16, True, DEQUANTIZED_ROWS, False),
        (torch.float32, False, DEQUANTIZED_ROWS, False),
    ],
)
def test_when_weights_are_dequantized(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    batch_invariant: bool,
    rows: int,
    expected: bool,
) -> None:
    calls = []

    def product(x: Tensor, *_: object) -> Tensor:
        calls.append(len(x))
        return x

    monkeypatch.setattr(quantized_linear, "product_dequantized", product)
    weight: QuantizedWeight = Int4Weight.quantize(draw(8, 32, dtype=torch.float16, device=device), 16)
    linear = TritonOps(device, dtype, batch_invariant=batch_invariant).linear(weight)
    linear(draw(rows, 32, dtype=dtype, device=device))
    assert calls == [rows] * expected


def test_layers_share_memory_for_the_largest_weight(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = Scratch(device, torch.float16)
    for n, k in ((10, 20), (30, 20), (5, 5)):
        scratch.reserve(n, k)
    whole = scratch.weight(30, 20)
    assert whole.dtype is torch.float16
    assert scratch.weight(5, 5).data_ptr() == whole.data_ptr()
    monkeypatch.setattr(module, "MAX_ELEMENTS", 1000)
    assert [outputs_at_a_time(*sizes) for sizes in ((50, 20), (500, 4), (500, 2), (100, 700))] == [50, 192, 500, 64]
