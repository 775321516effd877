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


def exact_product(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """In float64, of the quantized numbers."""
    if not isinstance(weight, Int8Weight | Fp8Weight) or not weight.quantize_activations:
        y = x.double() @ weight.dequantize().double().t()
    else:
        q, scales = (quantize_rows_int8 if isinstance(weight, Int8Weight) else quantize_rows_fp8)(x)
        y = q.double() @ weight.values.double().t() * scales.double()[:, None] * weight.scales.double().flatten()
    return y if bias is None else y + bias.double()
