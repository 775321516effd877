"""GPTQ checkpoints as AutoGPTQ and GPTQModel write them, in 4 bits."""

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
class GPTQFormat:
    """All tensors are transposed: rows of `qweight` are inputs, rows of `qzeros` and `scales` are groups. A word of
    `qweight` packs eight inputs, a word of `qzeros` eight outputs, the first in the lowest bits. `g_idx` holds the
    group of each input."""

    group_size: int | None  # None: all inputs of an output form one group
    # `checkpoint_format` gptq (v1) stores each zero point minus one, modulo 16; gptq_v2 stores zero points unchanged.
    zero_points_less_one: bool = True

    def stored(self, rows: int, columns: int) -> Tensors:
        if rows % 8 or columns % 8:
            raise ModelError(
                f"GPTQ packs 8 numbers into a word: rows and columns must be multiples of 8, not {rows} × {columns}"
            )
        groups = count_groups(columns, self.group_size)
        return {
            "qweight": StoredTensor(((columns // 8, rows),), ("I32",)),
            "qzeros": StoredTensor(((groups, rows // 8),), ("I32",)),
            "scales": StoredTensor(((groups, rows),), ("F16", *FLOATS)),
            "g_idx": StoredTensor(((columns,),), ("I32",), required=False),
        }

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        import torch

        from services.worker.quantization.kinds.int4 import Int4Weight, unpack_nibbles

        # In the transposed `qweight`, the nibbles of a row are in the order of its inputs.
        packed = tensors["qweight"].t().contiguous().view(torch.uint8)
        zero_points = unpack_nibbles(tensors["qzeros"].contiguous().view(torch.uint8)).t().contiguous()
        if self.zero_points_less_one:
            zero_points = (zero_points + 1) & 15
        weight = Int4Weight(packed, tensors["scales"].t().contiguous(), zero_points)
        return sort_by_group(weight, tensors["g_idx"]) if "g_idx" in tensors else weight

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.int4 import Int4Weight

        return Int4Weight.quantize(weight, self.group_size)


def sort_by_group(weight: Weight, group_of_input: Tensor) -> Weight:
    """Returns the weight with its columns sorted by group. `group_of_input` int32 [in_features] assigns a group to each
    column. Raises ModelError if the groups differ in size."""
    import torch

    from services.worker.quantization.kinds.int4 import Int4Weight, pack_nibbles, unpack_nibbles

    assert isinstance(weight, Int4Weight)
    sizes = torch.bincount(group_of_input, minlength=weight.scales.shape[1])
    if sizes.tolist() != [weight.group_size] * weight.scales.shape[1]:
        raise ModelError(f"g_idx does not assign {weight.group_size} inputs to every group")
    order = torch.argsort(group_of_input, stable=True)
    if bool((order.diff() == 1).all()):
        return weight
    packed = pack_nibbles(unpack_nibbles(weight.packed)[:, order])
    return Int4Weight(packed, weight.scales, weight.zero_points, order.to(torch.int32))
