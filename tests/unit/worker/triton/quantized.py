"""Quantized weights of every kind that the kernels serve, and what their products are in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.rows import quantize_rows_fp8, quantize_rows_int8
from services.worker.quantization.kinds.weight import QuantizedWeight

Make = Callable[[Tensor], QuantizedWeight]


def int4(group: int | None, scales: torch.dtype = torch.float16, act_order: bool = False) -> Make:
    def make(weight: Tensor) -> QuantizedWeight:
        quantized = Int4Weight.quantize(weight.to(scales), group)
        if not act_order:
            return quantized
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(5)).to(torch.int32)
        return replace(quantized, input_order=order)

    return make


def int8(group: int | None, scales: torch.dtype = torch.float32) -> Make:
    def make(weight: Tensor) -> QuantizedWeight:
        quantized = Int8Weight.quantize(weight, quantize_activations=False, group_size=group)
        return replace(quantized, scales=quantized.scales.to(scales))

    return make


WITH_ACTIVATIONS: dict[str, Make] = {
    "int8 x int8": lambda weight: Int8Weight.quantize(weight, quantize_activations=True),
    "fp8 x fp8": Fp8Weight.quantize,
}
WEIGHTS_ALONE: dict[str, Make] = {
    "fp8": lambda weight: Fp8Weight.quantize(weight, quantize_activations=False),
    "int8": int8(None),
    "int8, groups of 32 in bfloat16": int8(32, torch.bfloat16),
    "int8, groups of 160": int8(160),
    "int4": int4(None),
    "int4, groups of 32": int4(32),
    "int4, groups of 64 in float32": int4(64, torch.float32),
    "int4, groups of 128 in bfloat16": int4(128, torch.bfloat16),
    "int4, groups of 160": int4(160),
    "int4, act-order": int4(64, act_order=True),
}
ALL = WITH_ACTIVATIONS | WEIGHTS_ALONE


# The tensor cores of an H200 add 32 fp8 products and the sum so far in one instruction. They cut off each addend, and
# then the sum, 13 binary places below the leading digit of the largest addend. A simulation of this gives the errors
# that were measured on an H200, digit by digit (see `accumulation_error`).
FP8_ACCUMULATION_PLACES = 13


def accumulation_error(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Returns how much fp8 tensor cores may change each sum of a product: 2⁻¹³ of the sum of the absolute values of its
    addends. This is not the worst case: 33 addends could each lose 2⁻¹³ of the largest. But they lose less on average
    and have both signs, so that no error in the simulation exceeded 0.6 of this bound. Without the sums in full float32
    after every 128 products, errors exceed it, up to 1.7 times with 640 inputs. 0 for other weights, and in Triton's
    interpreter, which adds in float32."""
    if not isinstance(weight, Fp8Weight) or not weight.quantize_activations or not x.is_cuda:
        return torch.zeros((), dtype=torch.float64, device=x.device)
    q, scales = quantize_rows_fp8(x)
    magnitudes = q.double().abs() @ weight.values.double().abs().t()
    return 2.0**-FP8_ACCUMULATION_PLACES * magnitudes * scales.double()[:, None] * weight.scales.double().flatten()


def assert_is_product(
    got: Tensor, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, relative: float, absolute: float
) -> None:
    """Asserts that `got` is the exact product up to a relative and an absolute error, and the error of fp8 tensor
    cores."""
    expected = exact_product(x, weight, bias)
    allowed = absolute + relative * expected.abs() + accumulation_error(x, weight)
    excess = (got.double() - expected).abs() - allowed
    assert (excess <= 0).all(), f"{(excess > 0).sum()} of {excess.numel()} differ too much, by up to {excess.max()}"


def exact_product(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """In float64, of the quantized numbers."""
    if not isinstance(weight, Int8Weight | Fp8Weight) or not weight.quantize_activations:
        y = x.double() @ weight.dequantize().double().t()
    else:
        q, scales = (quantize_rows_int8 if isinstance(weight, Int8Weight) else quantize_rows_fp8)(x)
        y = q.double() @ weight.values.double().t() * scales.double()[:, None] * weight.scales.double().flatten()
    return y if bias is None else y + bias.double()
