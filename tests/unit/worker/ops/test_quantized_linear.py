"""What every implementation is to compute with quantized weights, as the reference does it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from services.worker.ops.reference import ReferenceOps
from services.worker.quantization.kinds.fp4 import Fp4Weight
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.rows import quantize_rows_fp8, quantize_rows_int8
from services.worker.quantization.kinds.weight import QuantizedWeight

OUT, IN, ROWS = 24, 64, 5


@pytest.fixture
def ops() -> ReferenceOps:
    return ReferenceOps(torch.device("cpu"), torch.float32)


def random_input(generator: torch.Generator) -> Tensor:
    """Rows of very different magnitudes, one of them nothing."""
    x = torch.randn(ROWS, IN, generator=generator) * torch.tensor([[1e-3], [1.0], [50.0], [0.0], [1e4]])
    assert not x[3].any()
    return x


def weights_only(matrix: Tensor) -> list[QuantizedWeight]:
    order = torch.arange(IN, dtype=torch.int32).flip(0)
    int4 = Int4Weight.quantize(matrix, 32)
    return [
        Fp8Weight.quantize(matrix, quantize_activations=False),
        Int8Weight.quantize(matrix, quantize_activations=False),
        Int8Weight.quantize(matrix, False, group_size=32),
        int4,
        Int4Weight(int4.packed, int4.scales, int4.zero_points, order),
        Fp4Weight.quantize(matrix),
    ]


@pytest.mark.parametrize("index", range(6))
def test_weights_alone_are_multiplied_as_the_numbers_they_stand_for(
    ops: ReferenceOps, generator: torch.Generator, index: int
) -> None:
    weight = weights_only(torch.randn(OUT, IN, generator=generator))[index]
    x, bias = random_input(generator), torch.randn(OUT, generator=generator)
    expected = x.double() @ weight.dequantize().double().t() + bias
    torch.testing.assert_close(ops.linear(weight, bias)(x).double(), expected, rtol=1e-5, atol=1e-4)


def test_int8_sums_are_those_of_integers(ops: ReferenceOps, generator: torch.Generator) -> None:
    weight = Int8Weight.quantize(torch.randn(OUT, IN, generator=generator), quantize_activations=True)
    x, bias = random_input(generator), torch.randn(OUT, generator=generator)
    q, x_scales = quantize_rows_int8(x)
    sums = (q.int()[:, None] * weight.values.int()[None]).sum(-1)
    expected = sums.float() * x_scales[:, None] * weight.scales.flatten()
    assert torch.equal(ops.linear(weight)(x), expected)
    assert torch.equal(ops.linear(weight, bias)(x), expected + bias)
    assert not expected[3].any()
    assert not torch.equal(expected, x @ weight.dequantize().t())


def test_fp8_products_are_those_of_the_rounded_numbers(ops: ReferenceOps, generator: torch.Generator) -> None:
    weight = Fp8Weight.quantize(torch.randn(OUT, IN, generator=generator))
    x = random_input(generator)
    q, x_scales = quantize_rows_fp8(x)
    expected = (q.double() * x_scales[:, None].double()) @ weight.dequantize().double().t()
    y = ops.linear(weight)(x).double()
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    assert (y - x.double() @ weight.dequantize().double().t()).abs().max() > 1e-3


def test_half_precision_goes_in_and_comes_out(generator: torch.Generator) -> None:
    ops = ReferenceOps(torch.device("cpu"), torch.bfloat16)
    matrix, x = torch.randn(OUT, IN, generator=generator), torch.randn(ROWS, IN, generator=generator).bfloat16()
    for weight in [Int8Weight.quantize(matrix, True), Fp8Weight.quantize(matrix), *weights_only(matrix)]:
        y = ops.linear(weight, torch.zeros(OUT))(x)
        assert y.dtype is torch.bfloat16
        expected = x.float() @ weight.dequantize().t()
        assert (y.float() - expected).norm() < 0.05 * expected.norm()


def test_embeddings_are_rows_of_the_dequantized_weight(ops: ReferenceOps, generator: torch.Generator) -> None:
    matrix = torch.randn(OUT, IN, generator=generator)
    ids = torch.tensor([3, 3, 23, 0])
    for weight in [Int8Weight.quantize(matrix, True), Fp8Weight.quantize(matrix), *weights_only(matrix)]:
        assert torch.equal(ops.embedding(ids, ops.linear(weight)), weight.dequantize()[ids])
