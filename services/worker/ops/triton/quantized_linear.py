"""Linear layers with quantized weights on a GPU: the kernel and the memory layout of each kind."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from services.worker.ops.triton.dequantize import DEQUANTIZED_ROWS, Scratch, product_dequantized
from services.worker.ops.triton.eight_bit import eight_bit
from services.worker.ops.triton.eight_bit_weights import EightBitLayout, eight_bit_weights
from services.worker.ops.triton.four_bit import FourBitLayout, four_bit
from services.worker.ops.triton.quantize_rows import QuantizedRows, quantize_rows
from services.worker.ops.triton.scaled_mm import scaled_mm, serves
from services.worker.ops.triton.split_k import reserve
from services.worker.ops.triton.tiles import LEAST_K
from services.worker.quantization.kinds import (
    Fp4Weight,
    Fp8BlockWeight,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    QuantizedWeight,
)

# First compute capability whose tensor cores multiply fp8.
_FP8_CAPABILITY = (8, 9)


def computes_with(weight: QuantizedWeight, device: torch.device) -> bool:
    """Returns whether the kernels support the weight. A weight with several groups must have a multiple of 16 inputs
    per group. If activations are quantized to fp8, the tensor cores must be able to multiply fp8. No kernel supports
    fp8 with scales per block, or int8 with zero points or an order of inputs."""
    if isinstance(weight, Fp8BlockWeight | Fp4Weight):
        return False
    if isinstance(weight, Int4Weight):
        return FourBitLayout.takes(weight)
    if isinstance(weight, Int8Weight):
        if weight.zero_points is not None or weight.input_order is not None:
            return False
        return weight.scales.shape[1] == 1 or weight.group_size % LEAST_K == 0
    return not weight.quantize_activations or _multiplies_fp8(device)


class EightBitLinear:
    """A layer that multiplies the checkpoint's int8 or fp8 values with activations quantized to the same type
    (W8A8)."""

    def __init__(
        self, weight: Fp8Weight | Int8Weight, bias: Tensor | None, dtype: torch.dtype, *, batch_invariant: bool
    ) -> None:
        self._scales = weight.scales.float().flatten()
        self._weight = replace(weight, values=weight.values.contiguous(), scales=self._scales.view(weight.scales.shape))
        self.bias = bias
        self._dtype = dtype
        self.batch_invariant = batch_invariant
        reserve(self._scales.device)

    @property
    def input_dtype(self) -> torch.dtype:
        """The type to which activations are quantized: int8 or float8_e4m3fn."""
        return self._weight.values.dtype

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """x: activations [m, in_features], or what `quantize_rows` makes of them with `input_dtype`."""
        values = self._weight.values
        q, row_scales = quantize_rows(x, values.dtype) if isinstance(x, Tensor) else x
        if not self.batch_invariant and serves(q, values, self._dtype):
            return scaled_mm(q, values, row_scales, self._scales[None], self.bias, self._dtype)
        return eight_bit(
            q, values, self._scales, row_scales, self.bias, self._dtype, batch_invariant=self.batch_invariant
        )

    def rows(self, ids: Tensor) -> Tensor:
        """Returns rows `ids`, int64 [n], of the weight, dequantized: [n, in_features]."""
        return self._weight.select_rows(ids).dequantize().to(self._dtype)

    def all_rows(self) -> Tensor:
        """Returns the weight, dequantized: [out_features, in_features]."""
        return self.rows(torch.arange(len(self._weight.values), device=self._weight.values.device))


class WeightOnlyLinear:
    """A layer that multiplies a weight of 4 or 8 bits, repacked by `four_bit.py` or `eight_bit_weights.py`, with
    floating-point activations. For many rows of activations, `dequantize.py` multiplies."""

    def __init__(
        self,
        weight: Fp8Weight | Int8Weight | Int4Weight,
        bias: Tensor | None,
        dtype: torch.dtype,
        scratch: Scratch,
        *,
        batch_invariant: bool,
    ) -> None:
        """`scratch`: of the device and `dtype`, shared by its layers."""
        self._weight: FourBitLayout | EightBitLayout
        if isinstance(weight, Int4Weight):
            self._weight = FourBitLayout.of(weight, dtype)
        else:
            self._weight = EightBitLayout.of(weight, dtype)
        self.bias = bias
        self._dtype = dtype
        self.batch_invariant = batch_invariant
        reserve(weight.scales.device)
        self._scratch = None if batch_invariant or dtype is torch.float32 else scratch
        if self._scratch is not None:
            self._scratch.reserve(*weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        if self._scratch is not None and len(x) >= DEQUANTIZED_ROWS:
            return product_dequantized(x, self._weight, self.bias, self._scratch)
        if isinstance(self._weight, FourBitLayout):
            return four_bit(x, self._weight, self.bias, batch_invariant=self.batch_invariant)
        return eight_bit_weights(x, self._weight, self.bias, batch_invariant=self.batch_invariant)

    def rows(self, ids: Tensor) -> Tensor:
        """Returns rows `ids`, int64 [n], of the weight, dequantized: [n, in_features]."""
        return self._weight.select_rows(ids).dequantize().to(self._dtype)

    def all_rows(self) -> Tensor:
        """Returns the weight, dequantized: [out_features, in_features]."""
        return self.rows(torch.arange(self._weight.packed.shape[1], device=self._weight.packed.device))


def _multiplies_fp8(device: torch.device) -> bool:
    """Returns whether the device, or Triton's interpreter in its place, can multiply fp8."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
