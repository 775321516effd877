"""AWQ checkpoints in the layouts that AutoAWQ writes for its GEMM and its GEMV kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.errors import ModelError
from services.worker.quantization.formats import FLOATS, SCALE_BYTES, StoredTensor, Tensors, count_groups
from services.worker.quantization.integers import integer_weight, num_words, quantize, unpack
from services.worker.quantization.memory import Footprint, int4

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight

# Nibble n of word w holds output 8 w + ORDER[n].
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class AWQFormat:
    """All tensors are transposed: rows of `qweight` are inputs, rows of `qzeros` and `scales` are groups. A word packs
    eight outputs, in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up."""

    group_size: int | None  # None: all inputs of an output form one group

    def stored(self, rows: int, columns: int) -> Tensors:
        if rows % 8:
            raise ModelError(f"AWQ packs 8 outputs into a word: a matrix must have a multiple of 8 outputs, not {rows}")
        groups = count_groups(columns, self.group_size)
        return {
            "qweight": StoredTensor(((columns, rows // 8),), ("I32",)),
            "qzeros": StoredTensor(((groups, rows // 8),), ("I32",)),
            "scales": StoredTensor(((groups, rows),), ("F16", *FLOATS)),
        }

    def footprint(self, rows: int, columns: int) -> Footprint:
        return int4(rows, columns, count_groups(columns, self.group_size), SCALE_BYTES)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.int4 import Int4Weight, pack_nibbles

        return Int4Weight(
            pack_nibbles(_outputs_first(tensors["qweight"])),
            tensors["scales"].t().contiguous(),
            _outputs_first(tensors["qzeros"]).contiguous(),
        )

    def quantize(self, weight: Tensor) -> Weight:
        return quantize(weight, 4, self.group_size)


@dataclass(frozen=True, slots=True)
class AWQGemvFormat:
    """Rows of all tensors are outputs. A word of `qweight` packs eight inputs, and a word of `qzeros` eight groups, the
    first in the lowest bits. The groups are padded to whole words, and in groups of 64 and 32 to two and four words."""

    group_size: int | None  # None: all inputs of an output form one group

    def stored(self, rows: int, columns: int) -> Tensors:
        groups = count_groups(columns, self.group_size)
        inputs = columns // groups
        if inputs < 128 and inputs not in (32, 64):
            raise ModelError(f"AWQ of version gemv has groups of 32, 64, or 128 and more inputs, not {inputs}")
        unit = max(1, 128 // inputs)
        words = -(-groups // (8 * unit)) * unit
        return {
            "qweight": StoredTensor(((rows, num_words(columns, 4, "AWQ")),), ("I32",)),
            "qzeros": StoredTensor(((rows, words),), ("I32",)),
            "scales": StoredTensor(((rows, 8 * words),), ("F16", *FLOATS)),
        }

    def footprint(self, rows: int, columns: int) -> Footprint:
        return int4(rows, columns, count_groups(columns, self.group_size), SCALE_BYTES)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        groups = count_groups(columns, self.group_size)
        zero_points = unpack(tensors["qzeros"], 4)[:, :groups].contiguous()
        return integer_weight(tensors["qweight"], 4, tensors["scales"][:, :groups].contiguous(), zero_points)

    def quantize(self, weight: Tensor) -> Weight:
        return quantize(weight, 4, self.group_size)


def _outputs_first(words: Tensor) -> Tensor:
    """Unpacks and transposes words: int32 [n, rows / 8] -> uint8 [rows, n], values below 16."""
    import torch

    from services.worker.quantization.kinds.int4 import unpack_nibbles

    nibbles = unpack_nibbles(words.contiguous().view(torch.uint8)).view(*words.shape, 8)
    place_of_output = torch.tensor(ORDER, device=words.device).argsort()
    return nibbles[:, :, place_of_output].flatten(1).t()
