"""compressed-tensors' `pack-quantized` form: 4- or 8-bit integers, several per word, weights only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.quantization.formats import FLOATS, SCALE_BYTES, StoredTensor, Tensors, count_groups
from services.worker.quantization.integers import integer_weight, num_words, quantize, sort_by_group, unpack
from services.worker.quantization.memory import Footprint, int8, integers

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """Words of `weight_packed` pack inputs, and words of `weight_zero_point` pack outputs. The first is in the lowest
    bits. Both tensors store signed numbers plus half of the range, as unsigned numbers. `weight_g_idx` is the same as
    GPTQ's `g_idx`."""

    bits: int  # 4 or 8
    group_size: int | None  # None: all inputs of an output form one group
    symmetric: bool

    def stored(self, rows: int, columns: int) -> Tensors:
        groups = count_groups(columns, self.group_size)
        tensors = {
            "weight_packed": StoredTensor(((rows, num_words(columns, self.bits, "pack-quantized")),), ("I32",)),
            "weight_scale": StoredTensor(((rows, groups),), ("BF16", *FLOATS)),
            "weight_g_idx": StoredTensor(((columns,),), ("I32",), required=False),
        }
        if not self.symmetric:
            words = num_words(rows, self.bits, "pack-quantized")
            tensors["weight_zero_point"] = StoredTensor(((words, groups),), ("I32",))
        return tensors

    def footprint(self, rows: int, columns: int) -> Footprint:
        groups = count_groups(columns, self.group_size)
        if self.bits == 8 and not self.symmetric:
            return int8(rows, columns, groups, SCALE_BYTES, has_zero_points=True)
        return integers(self.bits, rows, columns, groups, SCALE_BYTES)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        zero_points = None
        if not self.symmetric:
            zero_points = unpack(tensors["weight_zero_point"].t(), self.bits).t().contiguous()
        weight = integer_weight(tensors["weight_packed"], self.bits, tensors["weight_scale"], zero_points)
        return sort_by_group(weight, tensors["weight_g_idx"]) if "weight_g_idx" in tensors else weight

    def quantize(self, weight: Tensor) -> Weight:
        return quantize(weight, self.bits, self.group_size)
