"""Activations in 8 bits on the device: the bits that `quantization/kinds/rows.py` says."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from services.worker.ops.interface import Activation
from services.worker.ops.triton import quantize_rows as module
from services.worker.ops.triton.activation import MAX_QUANTIZED_BLOCK, gated_activation, gated_activation_quantized
from services.worker.ops.triton.quantize_rows import QuantizedRows, quantize_rows
from services.worker.ops.triton.rms_norm import add_rms_norm, add_rms_norm_quantized
from services.worker.quantization.kinds.rows import quantize_rows_fp8, quantize_rows_int8
from tests.unit.worker.triton.random_tensors import DTYPES, draw

KINDS = [(torch.int8, quantize_rows_int8), (torch.float8_e4m3fn, quantize_rows_fp8)]


@pytest.mark.parametrize(("kind", "oracle"), KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 576, module.MAX_BLOCK + 300])
def test_bits(device: torch.device, dtype: torch.dtype, kind: torch.dtype, oracle, features: int) -> None:
    """Rows of ordinary numbers, of zeros, of the largest and the least; a row wider than is taken at a time."""
    x = draw(6, features, dtype=dtype, device=device)
    x[1] = 0
    x[2] *= torch.finfo(dtype).max / 8
    x[3] *= 1e-7
    x[4, -1] = 1000
    q, scales = quantize_rows(x, kind)
    expected, expected_scales = oracle(x)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(q.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize(("kind", "oracle"), KINDS)
def test_halves_are_rounded_to_even(device: torch.device, kind: torch.dtype, oracle) -> None:
    largest = 127.0 if kind is torch.int8 else 448.0
    x = torch.tensor([[largest, *(n / 2 for n in range(-250, 250))]], device=device)
    assert torch.equal(quantize_rows(x, kind)[0].float(), oracle(x)[0].float())


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_what_is_not_a_number_stays_in_its_row(device: torch.device, kind: torch.dtype) -> None:
    x = draw(3, 40, dtype=torch.float32, device=device)
    clean, clean_scales = quantize_rows(x, kind)
    x[1, 7] = torch.nan
    q, scales = quantize_rows(x, kind)
    assert scales.isnan().tolist() == [False, True, False]
    for row in (0, 2):
        assert torch.equal(q[row].view(torch.uint8), clean[row].view(torch.uint8))
        assert scales[row] == clean_scales[row]


def test_rows_may_be_a_slice_of_wider_ones(device: torch.device) -> None:
    x = draw(5, 40, dtype=torch.float32, device=device)
    for got, expected in zip(quantize_rows(x[:, 8:24], torch.int8), quantize_rows_int8(x[:, 8:24]), strict=True):
        assert torch.equal(got, expected)
    with pytest.raises(ValueError, match="contiguous rows"):
        quantize_rows(x.t(), torch.int8)
    with pytest.raises(ValueError, match="float16"):
        quantize_rows(x, torch.float16)


def assert_same_bits(got: QuantizedRows, expected: QuantizedRows) -> None:
    assert torch.equal(got.values.view(torch.uint8), expected.values.view(torch.uint8))
    assert torch.equal(got.scales.view(torch.int32), expected.scales.view(torch.int32))


def assert_close(got: QuantizedRows, expected: QuantizedRows) -> None:
    """On a GPU, the compiler may add up a row's squares in another order where the kernel also quantizes. A scale then
    differs in its last bits, and a few values are rounded to the next code."""
    torch.testing.assert_close(got.scales, expected.scales, rtol=1e-2, atol=0.0, equal_nan=True)
    values, others = (rows.values.float()[~expected.scales.isnan()] for rows in (got, expected))
    assert ((values - others).abs() <= (others.abs() / 8).clamp(min=1.0)).all()
    assert (values != others).float().mean() < 0.01


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 40, 576, 2000])
def test_a_norm_quantizes_what_it_rounded(
    device: torch.device, dtype: torch.dtype, kind: torch.dtype, features: int
) -> None:
    """Rows of zeros and of a value that is not a number; several rows in one program."""
    x, residual = (draw(9, features, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    weight = draw(features, dtype=dtype, device=device, seed=2)
    x[3], residual[3] = 0, 0
    x[5, -1] = torch.nan
    kept = residual.clone()
    expected = quantize_rows(add_rms_norm(x, kept, weight, 1e-5), kind)
    got = add_rms_norm_quantized(x, residual, weight, 1e-5, kind)
    if device.type == "cuda":
        assert_close(got, expected)
    else:
        assert_same_bits(got, expected)
    assert torch.equal(residual.nan_to_num(), kept.nan_to_num())
    with pytest.raises(ValueError, match="same shape"):
        add_rms_norm_quantized(x, residual[:4], weight, 1e-5, kind)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("features", "activation"),
    [*product([3, 576], Activation), (2 * MAX_QUANTIZED_BLOCK + 40, Activation.SILU)],
)
def test_an_activation_quantizes_what_it_rounded(
    device: torch.device, activation: Activation, kind: torch.dtype, features: int
) -> None:
    """A row of one block, and one of three, which is activated twice. The largest value is in the last block."""
    dtype = torch.bfloat16 if features % 2 else torch.float32
    gate_up = draw(5, 2 * features, dtype=dtype, device=device)
    gate_up[1] = 0
    gate_up[2, features - 1], gate_up[2, -1] = 30, 30
    gate_up[3, -1] = torch.nan
    expected = quantize_rows(gated_activation(gate_up, activation), kind)
    assert_same_bits(gated_activation_quantized(gate_up, activation, kind), expected)


def test_an_activation_refuses_what_it_would_misread(device: torch.device) -> None:
    x = draw(4, 6, dtype=torch.float32, device=device)
    for bad in (x[:, 1:], x[:, :5].contiguous(), x[0]):
        with pytest.raises(ValueError, match="contiguous matrix"):
            gated_activation_quantized(bad, Activation.SILU, torch.int8)
    assert gated_activation_quantized(x[:0], Activation.SILU, torch.int8).values.shape == (0, 3)
