"""Activations in 8 bits on the device: the bits that `quantization/kinds/rows.py` says."""

from __future__ import annotations

import pytest
import torch

from services.worker.ops.triton import quantize_rows as module
from services.worker.ops.triton.quantize_rows import quantize_rows
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
