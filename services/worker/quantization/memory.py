"""How much memory a quantized matrix takes once it is read, computed without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

_FP8_SCALE_BYTES = 4


class Kind(Enum):
    """The kinds of weight in `kinds/`. int8 with zero points is one of its own, because not every device has it."""

    FP8 = auto()
    FP8_BLOCKS = auto()
    INT8 = auto()
    INT8_ZERO_POINTS = auto()
    INT4 = auto()
    FP4 = auto()


@dataclass(frozen=True, slots=True)
class Computed:
    """The kinds that a device's operations compute with. They turn other kinds into floats."""

    matrices: frozenset[Kind]
    experts: frozenset[Kind]  # of the matrices of experts


_ON_CPUS = frozenset((Kind.INT8, Kind.INT8_ZERO_POINTS, Kind.INT4, Kind.FP4))
# By type of device, if groups have a common size. `Ops.computes_with` decides in the end, for each weight.
COMPUTED: Mapping[str, Computed] = {
    "cpu": Computed(_ON_CPUS, _ON_CPUS),
    "cuda": Computed(frozenset((Kind.FP8, Kind.INT8, Kind.INT4)), frozenset()),
}
ALL_KINDS = Computed(frozenset(Kind), frozenset(Kind))


@dataclass(frozen=True, slots=True)
class Footprint:
    kind: Kind
    num_bytes: int


def fp8(rows: int, columns: int) -> Footprint:
    return Footprint(Kind.FP8, rows * columns + rows * _FP8_SCALE_BYTES)


def fp8_blocks(rows: int, columns: int, block_inputs: int) -> Footprint:
    """The scale of a block is repeated for each output."""
    return Footprint(Kind.FP8_BLOCKS, rows * columns + rows * -(-columns // block_inputs) * _FP8_SCALE_BYTES)


def int8(rows: int, columns: int, groups: int, scale_bytes: int, *, has_zero_points: bool = False) -> Footprint:
    """`groups`: of each output."""
    kind = Kind.INT8_ZERO_POINTS if has_zero_points else Kind.INT8
    return Footprint(kind, rows * columns + rows * groups * (scale_bytes + has_zero_points))


def int4(rows: int, columns: int, groups: int, scale_bytes: int) -> Footprint:
    """Every group has a zero point of one byte. `groups`: of each output."""
    return Footprint(Kind.INT4, rows * columns // 2 + rows * groups * (scale_bytes + 1))


def integers(bits: int, rows: int, columns: int, groups: int, scale_bytes: int) -> Footprint:
    """8 bits without zero points, or fewer bits, which take 4 in memory. See `integers.py`."""
    return (int8 if bits == 8 else int4)(rows, columns, groups, scale_bytes)


def fp4(rows: int, columns: int, group_size: int) -> Footprint:
    return Footprint(Kind.FP4, rows * columns // 2 + rows * columns // group_size)
