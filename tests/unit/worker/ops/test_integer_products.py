"""Weights in 8 and 4 bits, and in floats of 4 bits: right, and the same bits for a row in any company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.cpu.quantized_linear import QuantizedLinear
from services.worker.quantization.kinds.fp4 import E2M1, Fp4Weight
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import Int4Weight, unpack_nibbles
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.rows import quantize_rows_int8
from tests.unit.worker.ops.paging import assert_close

Quantized = Int8Weight | Int4Weight | Fp4Weight
# Outputs and inputs of whole panels and of their remains; groups of the inputs, or one.
SHAPES = [(960, 576, None), (100, 1536, 32), (49, 128, 64), (1, 8, None), (17, 50, None), (130, 256, 128)]
KINDS = [
    "int8 with rounded rows",
    "int8",
    "int4",
    "int4 in another order",
    "int8 with zero points in another order",
    "fp4",
]


def quantized(kind: str, shape: tuple[int, int, int | None], generator: torch.Generator) -> Quantized:
    rows, columns, group_size = shape
    weight = torch.randn(rows, columns, generator=generator)
    if kind == "fp4":  # its groups are of 32; inputs past the end are none
        return Fp4Weight.quantize(functional.pad(weight, (0, -columns % 32)))
    if kind == "int8":
        return Int8Weight.quantize(weight, quantize_activations=False, group_size=group_size)
    if kind == "int8 with rounded rows":
        return Int8Weight.quantize(weight, quantize_activations=True)
    if kind == "int8 with zero points in another order":
        plain = Int8Weight.quantize(weight, quantize_activations=False, group_size=group_size)
        zero_points = torch.randint(-128, 128, plain.scales.shape, generator=generator, dtype=torch.int8)
        return replace(plain, zero_points=zero_points, input_order=torch.randperm(columns, generator=generator).int())
    result = Int4Weight.quantize(weight, group_size)
    order = torch.randperm(columns, generator=generator).int() if kind == "int4 in another order" else None
    return Int4Weight(result.packed, result.scales, result.zero_points, order)


def expected(weight: Quantized, bias: Tensor | None, x: Tensor) -> Tensor:
    """float64, but for the rounding of rows."""
    rows = x.double()
    if isinstance(weight, Int8Weight) and weight.quantize_activations:
        q, scales = quantize_rows_int8(x)
        rows = q.double() * scales[:, None].double()
    y = rows @ weight.dequantize().double().T
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_exact_product(
    cpus: dict[str, CPUOps], generator: torch.Generator, kind: str, shape: tuple[int, int, int | None]
) -> None:
    weight = quantized(kind, shape, generator)
    for bias in (None, torch.randn(shape[0], generator=generator)):
        layers = {level: QuantizedLinear(cpu._library, weight, bias) for level, cpu in cpus.items()}
        for rows in (1, 7, 8, 9, 131):
            x = torch.randn(rows, weight.shape[1], generator=generator)
            exact = expected(weight, bias, x)
            for level, layer in layers.items():
                told = f"{level}, {rows} rows, {'no bias' if bias is None else 'a bias'}"
                assert_close(layer(x).double(), exact, rtol=1e-5, atol=1e-5 * shape[1] ** 0.5, told=told)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_alone_and_in_any_crowd(
    cpu: CPUOps, generator: torch.Generator, threads: int, kind: str
) -> None:
    linear = QuantizedLinear(cpu._library, quantized(kind, (200, 1024, 64), generator), None)
    x = torch.randn(300, 1024, generator=generator)
    together = linear(x)
    for rows in (*range(1, 20), 127, 128, 129, 257):
        start = (rows * 37) % (300 - rows)
        assert torch.equal(linear(x[start : start + rows]), together[start : start + rows])


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_bytes_do_not_overflow_or_saturate(cpu: CPUOps, generator: torch.Generator, kind: str) -> None:
    """The instructions that multiply bytes saturate in some forms; here every product is as large as it gets."""
    weight = quantized(kind, (32, 4096, None), generator)
    signs = torch.ones(2, 4096)
    signs[1] = -1
    ones = torch.ones(32, 4096, dtype=torch.int8)
    if isinstance(weight, Int8Weight):
        weight = Int8Weight(ones * -127, weight.scales, weight.quantize_activations)
    elif isinstance(weight, Fp4Weight):
        weight = Fp4Weight(torch.full_like(weight.packed, 255), torch.full_like(weight.exponents, 127))
    else:
        weight = Int4Weight(ones[:, ::2].to(torch.uint8) * 255, weight.scales, weight.zero_points * 0)
    y = QuantizedLinear(cpu._library, weight, None)(signs)
    torch.testing.assert_close(y.double(), expected(weight, None, signs), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_back_exactly(cpu: CPUOps, generator: torch.Generator, kind: str) -> None:
    weight = quantized(kind, (100, 256, 64), generator)
    linear = QuantizedLinear(cpu._library, weight, None)
    ids = torch.tensor([99, 0, 48, 48, 17])
    assert torch.equal(linear.rows(ids), weight.dequantize()[ids])
    for outside in (-1, 100):
        with pytest.raises(IndexError, match="vocabulary of 100"):
            linear.rows(torch.tensor([0, outside]))
    with pytest.raises(ValueError, match="token ids must be int64"):
        linear.rows(torch.tensor([0], dtype=torch.int32))


def test_eight_bits_take_a_byte_a_weight_and_four_half_of_one(cpu: CPUOps, generator: torch.Generator) -> None:
    eight, four = (
        QuantizedLinear(cpu._library, quantized(kind, (960, 576, None), generator), None) for kind in KINDS[1:3]
    )
    assert eight.num_bytes == 960 * 576 + 960 * 4
    assert four.num_bytes == 960 * 576 // 2 + 960 * 8


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_spoils_its_own_row_only(cpu: CPUOps, generator: torch.Generator, bad: float) -> None:
    weight = quantized(KINDS[0], (64, 128, None), generator)
    linear = QuantizedLinear(cpu._library, weight, None)
    x = torch.randn(3, 128, generator=generator)
    clean = linear(x)
    x[1, 77] = bad
    y = linear(x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], clean[[0, 2]])


def test_a_row_of_zeros_gives_the_bias(cpu: CPUOps, generator: torch.Generator) -> None:
    bias = torch.randn(64, generator=generator)
    linear = QuantizedLinear(cpu._library, quantized(KINDS[0], (64, 128, None), generator), bias)
    assert torch.equal(linear(torch.zeros(1, 128))[0], bias)


def test_what_c_would_misread_is_refused(cpu: CPUOps, generator: torch.Generator) -> None:
    linear = QuantizedLinear(cpu._library, quantized(KINDS[0], (64, 128, None), generator), None)
    for x in (torch.zeros(2, 64), torch.zeros(2, 128, dtype=torch.float64), torch.zeros(128, 2).T):
        with pytest.raises(ValueError, match="linear needs contiguous float32"):
            linear(x)
    with pytest.raises(TypeError, match="do not compute with a Int4Weight"):
        QuantizedLinear(cpu._library, quantized("int4", (8, 20, 4), generator), None)
    with pytest.raises(TypeError, match="do not compute with a Fp8Weight"):
        QuantizedLinear(cpu._library, Fp8Weight.quantize(torch.ones(8, 16)), None)


@pytest.mark.parametrize("shape", [(100, 1536), (49, 64), (7, 32)], ids=str)
def test_4_bit_floats_have_the_bits_of_their_doubled_values_in_8_bits(
    cpu: CPUOps, generator: torch.Generator, shape: tuple[int, int]
) -> None:
    weight = Fp4Weight.quantize(torch.randn(shape, generator=generator))
    doubled = (2 * torch.tensor(E2M1)[unpack_nibbles(weight.packed).long()]).to(torch.int8)
    wide = Int8Weight(doubled, weight.scales / 2, quantize_activations=False)
    x, bias = torch.randn(9, shape[1], generator=generator), torch.randn(shape[0], generator=generator)
    assert torch.equal(QuantizedLinear(cpu._library, weight, bias)(x), QuantizedLinear(cpu._library, wide, bias)(x))
