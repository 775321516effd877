"""fp8 with a scale per block of the matrix, as DeepSeek-V3, Qwen3-FP8 and compressed-tensors store it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.quantization.formats import FLOATS, StoredTensor, Tensors, checked_group_size
from services.worker.quantization.memory import Footprint, fp8_blocks

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight


@dataclass(frozen=True, slots=True)
class Fp8BlockFormat:
    """Stores the quantized numbers as `weight`, in float8_e4m3fn, and one scale per block of `outputs` × `inputs`
    numbers, as floats or as powers of two (E8M0). Blocks at the end of a matrix can be smaller. Quire multiplies such
    weights with activations in floats, which is more precise than with activations in fp8."""

    outputs: int
    inputs: int
    scale: str  # last part of the name of the scales: weight_scale_inv or weight_scale

    def stored(self, rows: int, columns: int) -> Tensors:
        blocks = (-(-rows // self.outputs), -(-columns // self.inputs))
        return {
            "weight": StoredTensor(((rows, columns),), ("F8_E4M3",)),
            self.scale: StoredTensor((blocks,), (*FLOATS, "F8_E8M0")),
        }

    def footprint(self, rows: int, columns: int) -> Footprint:
        return fp8_blocks(rows, columns, self.inputs)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.fp8_blocks import Fp8BlockWeight

        scales = tensors[self.scale].float().repeat_interleave(self.outputs, dim=0)[:rows]
        return Fp8BlockWeight(tensors["weight"], scales.contiguous(), self.inputs)

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.fp8_blocks import Fp8BlockWeight

        return Fp8BlockWeight.quantize(weight, self.inputs)


def block_format(size: object, scale: str) -> Fp8BlockFormat:
    """Returns the format with blocks of `size`, [outputs, inputs]. Raises ValueError if that is no pair of sizes."""
    if not isinstance(size, list) or len(size) != 2:
        raise ValueError(f"a block size is {size!r}; expected [outputs, inputs]")
    return Fp8BlockFormat(checked_group_size(size[0]), checked_group_size(size[1]), scale)
