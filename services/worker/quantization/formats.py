"""How checkpoints store one matrix: which tensors, of which shapes and types, and how they become a weight.

Nothing here imports torch before a weight is read: `quire estimate` counts bytes from these descriptions alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.worker.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight

# By safetensors' names.
FLOATS = ("F32", "F16", "BF16")
MAX_GROUP_SIZE = 1 << 20
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "I32": 4}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One of these shapes and one of these types; the first of each is the usual one."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    required: bool = True


Tensors = Mapping[str, StoredTensor]  # by the last part of their names: weight, weight_scale, qweight ...


class MatrixFormat(Protocol):
    def stored(self, rows: int, columns: int) -> Tensors:
        """What a checkpoint holds for a matrix [rows, columns]. Raises ModelError for sizes it cannot hold."""
        ...

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        """The matrix out of the tensors of `stored` that are there, on the device where they are. Raises ModelError for
        content that means nothing."""
        ...

    def quantize(self, weight: Tensor) -> Weight:
        """Any float matrix rounded into this form, for weights that come from no checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class DenseFormat:
    """`weight`, in floats."""

    def stored(self, rows: int, columns: int) -> Tensors:
        return {"weight": StoredTensor(((rows, columns),), FLOATS)}

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        return tensors["weight"]

    def quantize(self, weight: Tensor) -> Weight:
        return weight


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """`weight` in float8_e4m3fn, `weight_scale` for the whole or for each output."""

    quantize_activations: bool = True

    def stored(self, rows: int, columns: int) -> Tensors:
        return {
            "weight": StoredTensor(((rows, columns),), ("F8_E4M3",)),
            "weight_scale": StoredTensor(((rows, 1), (rows,), (1,), (), (1, 1)), FLOATS),
        }

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.fp8 import Fp8Weight

        scales = tensors["weight_scale"].float().flatten().expand(rows).contiguous()
        return Fp8Weight(tensors["weight"], scales, self.quantize_activations)

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.fp8 import Fp8Weight

        return Fp8Weight.quantize(weight, self.quantize_activations)


@dataclass(frozen=True, slots=True)
class Int8Format:
    """`weight` in int8, `weight_scale` for the whole, for each output, or for each group of an output's inputs."""

    quantize_activations: bool
    group_size: int | None = None

    def stored(self, rows: int, columns: int) -> Tensors:
        groups = count_groups(columns, self.group_size)
        whole: tuple[tuple[int, ...], ...] = ((rows,), (1,), (), (1, 1)) if self.group_size is None else ()
        return {
            "weight": StoredTensor(((rows, columns),), ("I8",)),
            "weight_scale": StoredTensor(((rows, groups), *whole), FLOATS),
        }

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.int8 import Int8Weight

        scales = tensors["weight_scale"]
        if self.group_size is None:
            scales = scales.flatten()[:, None].expand(rows, 1).contiguous()
        return Int8Weight(tensors["weight"], scales, self.quantize_activations)

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.int8 import Int8Weight

        return Int8Weight.quantize(weight, self.quantize_activations, self.group_size)


def checked_group_size(size: object) -> int:
    """Raises ValueError for what is no number of inputs."""
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_GROUP_SIZE:
        raise ValueError(f"a group size is {size!r}; expected 1 to {MAX_GROUP_SIZE:,}")
    return size


def count_groups(columns: int, group_size: int | None) -> int:
    """Groups of an output's inputs; one if no size is given. Raises ModelError if they do not come out even."""
    if group_size is None:
        return 1
    if columns % group_size:
        raise ModelError(f"a matrix of {columns} inputs cannot be quantized in groups of {group_size}")
    return columns // group_size


def stored_bytes(tensors: Tensors) -> int:
    """Of the usual form."""
    return sum(
        math.prod(tensor.shapes[0]) * ITEM_BYTES[tensor.dtypes[0]] for tensor in tensors.values() if tensor.required
    )
