"""A weight in 8- or 4-bit integers or in 4-bit floats, packed for the compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor, get_num_threads

from services.worker.ops.cpu.checks import is_plain
from services.worker.ops.cpu.library import Library
from services.worker.ops.cpu.linear import HELD_BELOW, PACK_ROWS, check_ids
from services.worker.quantization.kinds import (
    E2M1,
    Fp4Weight,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    QuantizedWeight,
    unpack_nibbles,
)

# HELD_BELOW for weights in bytes. It is four times as large, because bytes are read and multiplied in a quarter of the
# time that floats take.
HELD_BELOW_BYTES = 4 * HELD_BELOW


class QuantizedLinear:
    """A weight packed into panels. `quantized.c` defines the layout and the multiplication. The bits of an output row
    depend only on its input row."""

    def __init__(self, library: Library, weight: QuantizedWeight, bias: Tensor | None) -> None:
        if not self.takes(weight):
            raise TypeError(f"the CPU kernels do not compute with a {type(weight).__name__}")
        assert isinstance(weight, Int8Weight | Int4Weight | Fp4Weight)
        self.out_features, self.in_features = weight.shape
        self._bits = _bits(weight)
        self._rounds = isinstance(weight, Int8Weight) and weight.quantize_activations
        scales = weight.scales.float()
        groups = scales.shape[1]
        unit = 32 // self._bits
        self._depth = self.in_features if groups > 1 else -(-self.in_features // unit) * unit
        self._group_size = self._depth // groups
        self._packed = torch.zeros(self._padded(library) * self._depth * self._bits // 32, dtype=torch.int32)
        self._library = library
        for first in range(0, self.out_features, PACK_ROWS):
            last = min(first + PACK_ROWS, self.out_features)
            q = torch.zeros(last - first, self._depth, dtype=torch.uint8)
            q[:, : self.in_features] = _unsigned(weight, first, last)
            library.functions.quire_pack_quantized(
                q.data_ptr(), self._packed.data_ptr(), first, last, self.out_features, self._depth, self._bits
            )
        # The kernels take doubled E2M1 values, which are integers.
        self._scales = self._columns(library, scales / 2 if isinstance(weight, Fp4Weight) else scales)
        self._zeros = self._order = self._bias = None
        if isinstance(weight, Int4Weight):
            self._zeros = self._columns(library, weight.zero_points.to(torch.int32))
            if weight.input_order is not None:
                self._order = weight.input_order.to(device="cpu", dtype=torch.int32, copy=True).contiguous()
        if bias is not None:
            self._bias = bias.to(device="cpu", dtype=torch.float32, copy=True).contiguous()
        self._arguments = tuple(
            0 if tensor is None else tensor.data_ptr()
            for tensor in (self._order, self._packed, self._scales, self._zeros, self._bias)
        )
        self._held_rows = HELD_BELOW_BYTES // (self.out_features * self._depth) - 12

    @staticmethod
    def takes(weight: QuantizedWeight) -> bool:
        """Returns whether the kernels support the weight. It must have 8- or 4-bit integers or 4-bit floats, and either
        one group per row or groups that fill whole 32-bit words."""
        if isinstance(weight, Fp8Weight):
            return False
        return weight.scales.shape[1] == 1 or weight.group_size % (32 // _bits(weight)) == 0

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in (self._packed, self._scales, self._zeros) if x is not None)

    def description(self) -> dict[str, int]:
        """Returns the fields of `struct linear` in layers.c."""
        order, packed, scales, zeros, bias = self._arguments
        return {
            "order": order, "zeros": zeros, "weight": packed, "scales": scales, "bias": bias,
            "in_features": self.in_features, "out_features": self.out_features, "depth": self._depth,
            "group_size": self._group_size, "bits": self._bits, "flag": self._rounds,
        }  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        if not is_plain(x) or x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"linear needs contiguous float32 [n, {self.in_features}], not {x.dtype} {tuple(x.shape)}")
        rows = x.shape[0]
        y = x.new_empty((rows, self.out_features))
        functions = self._library.held if rows < self._held_rows else self._library.functions
        order, packed, scales, zeros, bias = self._arguments
        if functions.quire_gemm_quantized(
            x.data_ptr(), order, packed, scales, zeros, bias, y.data_ptr(), rows, self.in_features, self.out_features,
            self._depth, self._group_size, self._bits, self._rounds, get_num_threads(),
        ):  # fmt: skip
            raise MemoryError(f"out of memory to quantize {rows} rows of {self.in_features}")
        return y

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the rows `ids` (int64 [n]) of the weight, dequantized: float32 [n, in_features]. Raises IndexError
        for an id that is out of range."""
        ids = check_ids(ids, self.out_features)
        q = torch.empty(len(ids), self._depth, dtype=torch.uint8)
        self._library.functions.quire_unpack_quantized(
            ids.data_ptr(), self._packed.data_ptr(), q.data_ptr(), len(ids), self.out_features, self._depth, self._bits
        )
        groups = q.view(len(ids), -1, self._group_size)
        if self._zeros is not None:
            values = groups.float() - self._zeros[:, ids].T[:, :, None].float()
        elif self._bits == 8:
            values = groups.float() - 128.0
        else:
            values = 2 * torch.tensor(E2M1)[groups.long()]
        weight = (values * self._scales[:, ids].T[:, :, None]).flatten(1)[:, : self.in_features]
        if self._order is None:
            return weight.contiguous()
        ordered = torch.empty_like(weight)
        ordered[:, self._order.long()] = weight
        return ordered

    def _padded(self, library: Library) -> int:
        return int(library.functions.quire_padded_columns(self.out_features))

    def _columns(self, library: Library, x: Tensor) -> Tensor:
        """Transposes [out_features, groups] to [groups, padded out_features], the layout that the kernels read."""
        out = torch.zeros(x.shape[1], self._padded(library), dtype=x.dtype)
        out[:, : self.out_features] = x.T
        return out


def _bits(weight: Int8Weight | Int4Weight | Fp4Weight) -> int:
    return 8 if isinstance(weight, Int8Weight) else 4


def _unsigned(weight: Int8Weight | Int4Weight | Fp4Weight, first: int, last: int) -> Tensor:
    """Returns rows `first` to `last` (exclusive) of the weight as unsigned integers, uint8 [last - first, in_features].
    Values of Int8Weight are increased by 128; those of Fp4Weight are its codes."""
    if isinstance(weight, Int8Weight):
        return (weight.values[first:last].to(torch.int16) + 128).to(torch.uint8)
    return unpack_nibbles(weight.packed[first:last])
