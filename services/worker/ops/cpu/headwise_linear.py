"""One floating-point weight per head, packed for the compiled GEMM."""

from __future__ import annotations

import torch
from torch import Tensor, get_num_threads

from services.worker.ops.cpu.library import Library
from services.worker.ops.cpu.linear import HELD_BELOW, fits_bfloat16, pack


class PackedHeads:
    """See `interface.HeadwiseLinear`. Each head's weight is packed as in `PackedLinear`, one after the other."""

    def __init__(self, library: Library, weight: Tensor) -> None:
        if weight.dim() != 3 or not weight.is_floating_point():
            raise ValueError(f"weights of heads must be floats [heads, out, in], not {weight.dtype} {[*weight.shape]}")
        self._heads, self._out_features, self._in_features = weight.shape
        self._half = all(map(fits_bfloat16, weight))
        words = library.functions.quire_packed_words(self._out_features, self._in_features, self._half)
        self._words = torch.zeros(self._heads, words, dtype=torch.int32, device="cpu")
        for of_head, packed in zip(weight, self._words, strict=True):
            pack(library, of_head, packed, half=self._half)
        self._gemm, self._held_gemm = library.functions.quire_gemm_heads, library.held.quire_gemm_heads
        self._held_rows = HELD_BELOW // weight.numel() - 6

    def __call__(self, x: Tensor) -> Tensor:
        expected = (len(x), self._heads, self._in_features)
        if x.dtype is not torch.float32 or not x.is_cpu or x.shape != expected or x.stride(2) != 1:
            raise ValueError(f"headwise linear needs float32 {[*expected]}, not {x.dtype} {[*x.shape]}")
        y = x.new_empty((len(x), self._heads, self._out_features))
        gemm = self._held_gemm if len(x) < self._held_rows else self._gemm
        gemm(
            x.data_ptr(), self._words.data_ptr(), y.data_ptr(), len(x), self._heads, self._out_features,
            self._in_features, x.stride(0), x.stride(1), self._half, get_num_threads(),
        )  # fmt: skip
        return y
