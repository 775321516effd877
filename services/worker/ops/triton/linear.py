"""A weight on a GPU: the checkpoint's own layout, multiplied by cuBLAS or, in batch-invariant mode, by `matmul.py`."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from services.worker.ops.triton.matmul import matmul


class DenseLinear:
    """weight [out_features, in_features] and bias [out_features], contiguous, on the device in its type."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, batch_invariant: bool) -> None:
        self.weight = weight
        self.bias = bias
        self._batch_invariant = batch_invariant

    def __call__(self, x: Tensor) -> Tensor:
        if self._batch_invariant:
            return matmul(x, self.weight, self.bias)
        return functional.linear(x, self.weight, self.bias)
