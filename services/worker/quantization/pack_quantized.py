"""compressed-tensors' `pack-quantized` form: 4- or 8-bit integers, several per word, weights only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.errors import ModelError
from services.worker.quantization.formats import FLOATS, StoredTensor, Tensors, count_groups

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight


@dataclass(frozen=True, slots=True)
class PackedInt4Format:
    """4-bit weights. `weight_packed` packs eight inputs per word, and `weight_zero_point` eight outputs per word. The
    first is in the lowest bits. Both tensors store each value plus 8, as an unsigned number. `weight_g_idx` is the same
    as GPTQ's `g_idx`."""

    group_size: int | None  # None: all inputs of an output form one group
    symmetric: bool

    def stored(self, rows: int, columns: int) -> Tensors:
        if rows % 8 or columns % 8:
            raise ModelError(
                "pack-quantized packs 8 numbers into a word: rows and columns must be multiples of 8, "
                f"not {rows} × {columns}"
            )
        groups = count_groups(columns, self.group_size)
        tensors = {
            "weight_packed": StoredTensor(((rows, columns // 8),), ("I32",)),
            "weight_scale": StoredTensor(((rows, groups),), ("BF16", *FLOATS)),
            "weight_g_idx": StoredTensor(((columns,),), ("I32",), required=False),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = StoredTensor(((rows // 8, groups),), ("I32",))
        return tensors

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        import torch

        from services.worker.quantization.gptq import sort_by_group
        from services.worker.quantization.kinds.int4 import SYMMETRIC_ZERO_POINT, Int4Weight, unpack_nibbles

        scales = tensors["weight_scale"]
        if self.symmetric:
            zero_points = torch.full(scales.shape, SYMMETRIC_ZERO_POINT, dtype=torch.uint8, device=scales.device)
        else:
            words = tensors["weight_zero_point"].t().contiguous()  # [groups, rows / 8]
            zero_points = unpack_nibbles(words.view(torch.uint8)).t().contiguous()
        weight = Int4Weight(tensors["weight_packed"].contiguous().view(torch.uint8), scales, zero_points)
        return sort_by_group(weight, tensors["weight_g_idx"]) if "weight_g_idx" in tensors else weight

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.int4 import Int4Weight

        return Int4Weight.quantize(weight, self.group_size)


@dataclass(frozen=True, slots=True)
class PackedInt8Format:
    """8-bit weights. `weight_packed` packs four inputs per word. It stores each value plus 128, as an unsigned
    number."""

    group_size: int | None  # None: all inputs of an output form one group

    def stored(self, rows: int, columns: int) -> Tensors:
        if columns % 4:
            raise ModelError(
                f"pack-quantized packs 4 inputs into a word: a matrix must have a multiple of 4 inputs, not {columns}"
            )
        return {
            "weight_packed": StoredTensor(((rows, columns // 4),), ("I32",)),
            "weight_scale": StoredTensor(((rows, count_groups(columns, self.group_size)),), ("BF16", *FLOATS)),
        }

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        import torch

        from services.worker.quantization.kinds.int8 import Int8Weight

        values = (tensors["weight_packed"].contiguous().view(torch.uint8) ^ 0x80).view(torch.int8)
        return Int8Weight(values, tensors["weight_scale"], quantize_activations=False)

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.int8 import Int8Weight

        return Int8Weight.quantize(weight, False, self.group_size)
