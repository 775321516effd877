"""How a network asks for its weights and declares its layers.

A network's constructor runs twice. First `declare.py` runs it to list its weights and pages, before a file is opened
and without torch. Then `weights/load.py` runs it to load the weights. So each weight's name and shape is written once,
in the constructor, and constructors use tensors only as `Build` returns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.models.rope import RopeConfig
    from services.worker.ops import Activation, Experts, Heads, Layer, Linear, Ops, Rotation, RunLayers


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stored weight [outputs, inputs], and its bias [outputs] if it has one."""

    name: str  # within the scope of the `Build`, without ".weight"
    outputs: int
    inputs: int
    has_bias: bool = False
    is_transposed: bool = False  # stored as [inputs, outputs]
    rows: tuple[int, ...] = ()  # which output of the stored matrix comes first, second, ...; empty: as stored


class Build(Protocol):
    """A scope: names of weights are relative to it."""

    ops: Ops

    def inside(self, name: str) -> Build:
        """Returns the scope `name` within this one."""
        ...

    def linear(self, *matrices: Matrix) -> Linear:
        """Returns the product with several matrices of one input; their outputs are joined in the given order."""
        ...

    def experts(self, gate_up: Sequence[Sequence[Matrix]], down: Sequence[Matrix], activation: Activation) -> Experts:
        """Returns a mixture of experts with the matrices of each. See `Ops.experts`."""
        ...

    def vector(self, name: str, size: int, plus: float = 0.0) -> Tensor:
        """Returns a stored vector plus a constant, [size] in the operations' type, such as a norm's weight."""
        ...

    def distance_bias(self, name: str, num_buckets: int, num_heads: int, buckets: Sequence[int]) -> Tensor:
        """Returns `AttentionForm.distance_bias`, with the bucket of each distance, from a stored table [num_buckets,
        num_heads]."""
        ...

    def filled(self, size: int, value: float) -> Tensor:
        """Returns [size] in the operations' type, all `value`."""
        ...

    def constant(self, values: Sequence[float]) -> Tensor:
        """Returns float32 [len(values)] on the device."""
        ...

    def rotation(self, rope: RopeConfig, *, interleaved: bool = False) -> Rotation:
        """Returns the rotation for all positions. Equal rotations share their memory."""
        ...

    def attention(self, heads: Heads) -> int:
        """Declares a layer with pages of its own. Returns the index of its pages in `Step.pages`."""
        ...

    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        """See `Ops.fuse_layers`."""
        ...
