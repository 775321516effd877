"""Storage formats of a matrix: which tensors of a checkpoint store it, their shapes and types, and how to read it.

torch is imported only when a matrix is read, because `quire estimate` needs only the descriptions of the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from services.worker.errors import ModelError
from services.worker.fields import show
from services.worker.quantization.memory import Footprint, fp8, int8

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.quantization.kinds.weight import Weight

# Types are safetensors' names.
FLOATS = ("F32", "F16", "BF16")
MAX_GROUP_SIZE = 1 << 20
SCALE_BYTES = 2  # of a scale as most tools store it
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Describes a tensor of a checkpoint: its possible shapes and its possible types, the usual one first."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    required: bool = True


Tensors = Mapping[str, StoredTensor]  # keyed by the last part of the tensor's name: weight, weight_scale, qweight ...


class MatrixFormat(Protocol):
    def stored(self, rows: int, columns: int) -> Tensors:
        """Returns the tensors that store a matrix [rows, columns]. Raises ModelError for sizes that the format does not
        allow."""
        ...

    def footprint(self, rows: int, columns: int) -> Footprint | None:
        """Returns what the matrix [rows, columns] takes in memory; None if it is read as floats. Raises ModelError for
        sizes that the format does not allow."""
        ...

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        """Builds the matrix [rows, columns] from the tensors that store it, on their device. `tensors`: all tensors
        that `stored` requires, and those of its optional tensors that the checkpoint has. Raises ModelError for invalid
        content."""
        ...

    def quantize(self, weight: Tensor) -> Weight:
        """Quantizes a matrix of any float type to this format, at load or for dummy weights."""
        ...


@dataclass(frozen=True, slots=True)
class DenseFormat:
    """Stores `weight` in floats."""

    def stored(self, rows: int, columns: int) -> Tensors:
        return {"weight": StoredTensor(((rows, columns),), FLOATS)}

    def footprint(self, rows: int, columns: int) -> None:
        return None

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        return tensors["weight"]

    def quantize(self, weight: Tensor) -> Weight:
        return weight


@dataclass(frozen=True, slots=True)
class TransposedFormat:
    """Stores `weight` in floats, [inputs, outputs]."""

    def stored(self, rows: int, columns: int) -> Tensors:
        return {"weight": StoredTensor(((columns, rows),), FLOATS)}

    def footprint(self, rows: int, columns: int) -> None:
        return None

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        return tensors["weight"].t()

    def quantize(self, weight: Tensor) -> Weight:
        return weight


@dataclass(frozen=True, slots=True)
class EitherWayFormat:
    """Stores `weight` in floats, [outputs, inputs] or [inputs, outputs]."""

    def stored(self, rows: int, columns: int) -> Tensors:
        return {"weight": StoredTensor(((rows, columns), (columns, rows)), FLOATS)}

    def footprint(self, rows: int, columns: int) -> None:
        return None

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        weight = tensors["weight"]
        return weight if weight.shape == (rows, columns) else weight.t()

    def quantize(self, weight: Tensor) -> Weight:
        return weight


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """Stores the quantized numbers as `weight`, in float8_e4m3fn, and the scales as `scale`: one scale for the whole
    matrix, or one per output."""

    quantize_activations: bool = True
    scale: str = "weight_scale"  # last part of the tensor's name

    def stored(self, rows: int, columns: int) -> Tensors:
        return {
            "weight": StoredTensor(((rows, columns),), ("F8_E4M3",)),
            self.scale: StoredTensor(((rows, 1), (rows,), (1,), (), (1, 1)), FLOATS),
        }

    def footprint(self, rows: int, columns: int) -> Footprint:
        return fp8(rows, columns)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.fp8 import Fp8Weight

        scales = tensors[self.scale].float().flatten().expand(rows).contiguous()
        return Fp8Weight(tensors["weight"], scales, self.quantize_activations)

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.fp8 import Fp8Weight

        return Fp8Weight.quantize(weight, self.quantize_activations)


@dataclass(frozen=True, slots=True)
class Int8Format:
    """Stores the quantized numbers as `weight`, in int8, and the scales as `weight_scale`: one scale for the whole
    matrix, one per output, or one per group of inputs of an output. Stores `weight_zero_point`, in int8, if it is not
    symmetric."""

    quantize_activations: bool  # only if it is symmetric
    group_size: int | None = None
    symmetric: bool = True

    def stored(self, rows: int, columns: int) -> Tensors:
        groups = count_groups(columns, self.group_size)
        whole: tuple[tuple[int, ...], ...] = ((rows,), (1,), (), (1, 1)) if self.group_size is None else ()
        shapes = ((rows, groups), *whole)
        tensors = {
            "weight": StoredTensor(((rows, columns),), ("I8",)),
            "weight_scale": StoredTensor(shapes, FLOATS),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = StoredTensor(shapes, ("I8",))
        return tensors

    def footprint(self, rows: int, columns: int) -> Footprint:
        groups = count_groups(columns, self.group_size)
        return int8(rows, columns, groups, ITEM_BYTES[FLOATS[0]], has_zero_points=not self.symmetric)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int) -> Weight:
        from services.worker.quantization.kinds.int8 import Int8Weight

        def per_group(numbers: Tensor) -> Tensor:
            return numbers.flatten()[:, None].expand(rows, 1).contiguous() if self.group_size is None else numbers

        zero_points = None if self.symmetric else per_group(tensors["weight_zero_point"])
        return Int8Weight(tensors["weight"], per_group(tensors["weight_scale"]), self.quantize_activations, zero_points)

    def quantize(self, weight: Tensor) -> Weight:
        from services.worker.quantization.kinds.int8 import Int8Weight

        return Int8Weight.quantize(weight, self.quantize_activations, self.group_size)


def read_names(settings: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """Returns the list of names in the first of `keys` that has a value; none if no key has one. Raises ValueError if
    it is no list of strings."""
    key = next((key for key in keys if settings.get(key)), keys[0])
    names = settings.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} is {show(names)}; expected a list of strings")
    return tuple(names)


def checked_group_size(size: object) -> int:
    """Returns `size`, the number of inputs per group. Raises ValueError if it is no integer from 1 to
    MAX_GROUP_SIZE."""
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_GROUP_SIZE:
        raise ValueError(f"a group size is {size!r}; expected 1 to {MAX_GROUP_SIZE:,}")
    return size


def count_groups(columns: int, group_size: int | None) -> int:
    """Returns the number of groups per output; 1 if `group_size` is None. Raises ModelError if `columns` is no multiple
    of `group_size`."""
    if group_size is None:
        return 1
    if columns % group_size:
        raise ModelError(f"a matrix of {columns} inputs cannot be quantized in groups of {group_size}")
    return columns // group_size
