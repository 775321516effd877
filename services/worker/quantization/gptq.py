"""GPTQ checkpoints as AutoGPTQ and GPTQModel write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.quantization.formats import FLOATS, SCALE_BYTES, StoredTensor, Tensors, count_groups
from services.worker.quantization.integers import integer_weight, num_words, quantize, sort_by_group, unpack
from services.worker.quantization.memory import Footprint, integers

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight

BITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class GPTQFormat:
    """All tensors are transposed: rows of `qweight` are inputs, rows of `qzeros` and `scales` are groups. Words of
    `qweight` pack inputs, words of `qzeros` pack outputs, as `integers.py` describes. `g_idx` holds the group of each
    input."""

    group_size: int | None  # None: all inputs of an output form one group
    # `checkpoint_format` gptq (v1) stores each zero point minus one, modulo 2^bits; gptq_v2 stores zero points
    # unchanged.
    zero_points_less_one: bool = True
    bits: int = 4  # one of BITS

    def stored(self, rows: int, columns: int) -> Tensors:
        groups = count_groups(columns, self.group_size)
        return {
            "qweight": StoredTensor(((num_words(columns, self.bits, "GPTQ"), rows),), ("I32",)),
            "qzeros": StoredTensor(((groups, num_words(rows, self.bits, "GPTQ")),), ("I32",)),
            "scales": StoredTensor(((groups, rows),), ("F16", *FLOATS)),
            "g_idx": StoredTensor(((columns,),), ("I32",), required=False),
        }

    def footprint(self, rows: int, columns: int) -> Footprint:
        return integers(self.bits, rows, columns, count_groups(columns, self.group_size), SCALE_BYTES)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        zero_points = unpack(tensors["qzeros"], self.bits).t().contiguous()
        if self.zero_points_less_one:
            zero_points = (zero_points + 1) & (1 << self.bits) - 1
        words, scales = tensors["qweight"].t().contiguous(), tensors["scales"].t().contiguous()
        weight = integer_weight(words, self.bits, scales, zero_points)
        return sort_by_group(weight, tensors["g_idx"]) if "g_idx" in tensors else weight

    def quantize(self, weight: Tensor) -> Weight:
        return quantize(weight, self.bits, self.group_size)
