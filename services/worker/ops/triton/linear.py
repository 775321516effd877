"""Creates linear layers on a GPU. Those with quantized weights are in `quantized_linear.py`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.ops import interface
from services.worker.ops.triton.dequantize import Scratch
from services.worker.ops.triton.matmul import matmul
from services.worker.ops.triton.quantized_linear import EightBitLinear, WeightOnlyLinear
from services.worker.ops.triton.skinny import MAX_ROWS, chosen, may_serve, skinny
from services.worker.ops.triton.split_k import reserve
from services.worker.quantization.kinds import Fp4Weight, Fp8BlockWeight, Int4Weight, Weight


class DenseLinear:
    """A floating-point weight in the checkpoint's layout. cuBLAS multiplies by it, or `skinny.py` where that is faster.
    In batch-invariant mode, `matmul.py` multiplies by it.

    weight [out_features, in_features] and bias [out_features]: contiguous, on the device, in the activations' type.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, batch_invariant: bool) -> None:
        self.weight = weight
        self.bias = bias
        self._batch_invariant = batch_invariant
        self._may_be_skinny = not batch_invariant and may_serve(weight)
        if self._may_be_skinny:
            reserve(weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        if self._batch_invariant:
            return matmul(x, self.weight, self.bias)
        if self._may_be_skinny and len(x) <= MAX_ROWS and x.dim() == 2 and x.stride(1) == 1:
            tuning = chosen(len(x), *self.weight.shape)
            if tuning is not None:
                return skinny(x, self.weight, self.bias, tuning)
        return functional.linear(x, self.weight, self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        """Returns rows `ids`, int64 [n], of the weight: [n, in_features]."""
        return functional.embedding(ids, self.weight)


class HeadwiseLinear:
    """One weight per head, [num_heads, out_features, in_features] in the activations' type. cuBLAS multiplies by all of
    them in one call; in batch-invariant mode, `matmul.py` multiplies by one after the other."""

    def __init__(self, weight: Tensor, *, batch_invariant: bool) -> None:
        self.weight = weight
        self._batch_invariant = batch_invariant

    def __call__(self, x: Tensor) -> Tensor:
        heads = x.transpose(0, 1)  # [num_heads, num_tokens, in_features]
        if self._batch_invariant:
            return torch.stack([matmul(*of_head, None) for of_head in zip(heads, self.weight, strict=True)], dim=1)
        return torch.bmm(heads, self.weight.transpose(1, 2)).transpose(0, 1)


Linear = DenseLinear | EightBitLinear | WeightOnlyLinear


def to_dense(layer: interface.Linear) -> DenseLinear:
    """Returns a layer of `create_linear` with a floating-point weight."""
    if isinstance(layer, DenseLinear):
        return layer
    assert isinstance(layer, EightBitLinear | WeightOnlyLinear)
    return DenseLinear(layer.all_rows(), layer.bias, batch_invariant=layer.batch_invariant)


def create_linear(
    weight: Weight,
    bias: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
    *,
    batch_invariant: bool,
    scratch: Scratch | None = None,
) -> Linear:
    """Moves weight and bias to `device`, and returns a layer that applies them to activations in `dtype`. `scratch`:
    shared with other layers; by default, the layer has its own."""
    bias = None if bias is None else bias.to(device, dtype).contiguous()
    if isinstance(weight, Tensor):
        return DenseLinear(weight.to(device, dtype).contiguous(), bias, batch_invariant=batch_invariant)
    assert not isinstance(weight, Fp8BlockWeight | Fp4Weight), "turned into floats first: see computes_with"
    if isinstance(weight, Int4Weight) or not weight.quantize_activations:
        scratch = scratch or Scratch(device, dtype)
        return WeightOnlyLinear(weight.to(device), bias, dtype, scratch, batch_invariant=batch_invariant)
    return EightBitLinear(weight.to(device), bias, dtype, batch_invariant=batch_invariant)
