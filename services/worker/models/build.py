"""How a network asks for its weights and declares its layers.

A network's constructor runs twice. First `declare.py` runs it to list its weights and pages, before a file is opened
and without torch. Then `weights/loader.py` runs it to load the weights. So each weight's name and shape is written
once, in the constructor, and constructors use tensors only as `Build` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.models.rope import RopeConfig
    from services.worker.ops import Activate, Experts, Heads, HeadwiseLinear, Layer, Linear, Ops, Rotation, RunLayers


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a matrix in a tensor [count, ...] that stores several, such as those of all experts."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stored weight [outputs, inputs], and its bias [outputs] if it has one."""

    name: str  # within the scope of the `Build`, without ".weight"; with a `place`, the tensor's whole name
    outputs: int
    inputs: int
    has_bias: bool = False  # stored as `name`.bias, or with a `place` as `name`_bias [count, outputs]
    # Whether floats are stored as [inputs, outputs]; quantized formats define their own layout. None: the stored shape
    # decides, and a square matrix is not transposed.
    is_transposed: bool | None = False
    # Returns which output of the stored matrix comes first, second, ...; None: as stored. It is called once the stored
    # shape is known to be right, because config.json can name any size.
    rows: Callable[[], Sequence[int]] | None = None
    place: Place | None = None  # None: the matrix has tensors of its own

    @property
    def layer(self) -> str:
        """The matrix's name in `Declaration.parameters`, without the scope."""
        return self.name if self.place is None else f"{self.name}.{self.place.index}"

    @property
    def num_parameters(self) -> int:
        return self.outputs * (self.inputs + self.has_bias)

    def stacked(self, count: int) -> list[Matrix]:
        """Returns the `count` matrices of this form that the tensor `name` stores, one after the other."""
        return [replace(self, place=Place(index, count)) for index in range(count)]


class Build(Protocol):
    """A scope: names of weights are relative to it."""

    ops: Ops
    max_positions: int  # tokens in the longest sequence that is served; 0 while weights are only listed

    def inside(self, name: str) -> Build:
        """Returns the scope `name` within this one."""
        ...

    def linear(self, *matrices: Matrix) -> Linear:
        """Returns the product with several matrices of one input; their outputs are joined in the given order."""
        ...

    def absorbed(self, matrix: Matrix, num_heads: int, key_dim: int) -> tuple[HeadwiseLinear, HeadwiseLinear]:
        """Takes the matrix from a latent vector to the key (the first `key_dim` outputs) and the value of each of
        `num_heads` heads. Returns the transposed products with keys, key_dim -> latent, and the products with values,
        latent -> value_dim. A quantized matrix is turned into floats."""
        ...

    def experts(
        self, gate_up: Sequence[Sequence[Matrix]], down: Sequence[Matrix], activation: Activate, num_chosen: int
    ) -> Experts:
        """Returns a mixture of experts with the matrices of each, of which a token takes `num_chosen`. See
        `Ops.experts`."""
        ...

    def vector(self, name: str, size: int, plus: float = 0.0) -> Tensor:
        """Returns a stored vector plus a constant, [size] in the operations' type, such as a norm's weight."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a stored tensor that is no projection's matrix, in the operations' type, such as a norm's weights for
        each head."""
        ...

    def stacked(self, names: Sequence[str], size: int) -> Tensor:
        """Returns stored vectors of one size, one per row: [len(names), size] in the operations' type."""
        ...

    def wide_vector(self, name: str, size: int, plus: float = 0.0) -> Tensor:
        """Returns a stored vector plus a constant in float32, [size], such as `AttentionForm.sinks`."""
        ...

    def leave_out(self, scope: str) -> None:
        """Declares that the checkpoint may hold tensors in this scope, and that the network does not need them."""
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

    def table(self, rows: Callable[[int], Tensor]) -> Tensor:
        """Returns one computed row per position, `rows(number of positions)`, on the device in the operations' type."""
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
