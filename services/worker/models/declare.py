"""Lists the weights and the pages of a network, without torch and before a file is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from services.worker.errors import ModelError
from services.worker.models.build import Build, Matrix

if TYPE_CHECKING:
    from services.worker.models.rope import RopeConfig
    from services.worker.ops import Activate, Heads, Layer

Parameter = tuple[str, tuple[int, ...]]
# The published models with the most weights, mixtures of experts, have less than a third of these.
MAX_WEIGHTS = 1 << 18
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of one layer, which are all of one size."""

    num_experts: int
    num_chosen: int  # for each token
    num_parameters: int  # of one expert


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a network is made of."""

    # Shape of each weight by its name, in the order in which the network takes them. A matrix [outputs, inputs] has its
    # layer's name (`model.layers.0.mlp.up_proj`), because it may be stored as several tensors. Norms and biases have
    # their full names (`model.norm.weight`). If one tensor stores the matrices of all experts, each of them is a weight
    # with its index in its name (`model.layers.0.mlp.experts.down_proj.7`), and so is its bias (`....7.bias`).
    parameters: Mapping[str, tuple[int, ...]]
    matrices: Mapping[str, Matrix]  # those of `parameters`, by the same names
    attention: tuple[Heads, ...]  # heads of each layer with attention
    mixtures: tuple[Mixture, ...]  # one for each layer that is a mixture of experts
    of_experts: frozenset[str]  # names of the matrices of `mixtures`
    absorbed: frozenset[str]  # names of the matrices that `Build.absorbed` turns into floats
    left_out: tuple[str, ...]  # starts of the names of stored tensors that the network does not need


def declare(create: Callable[[ConfigT, Build], object], config: ConfigT, where: str = "config.json") -> Declaration:
    """`create`: a network's constructor. `where`: the file that `config` comes from, for the error. Raises ModelError
    if the network has more than MAX_WEIGHTS weights: to list and to read more would take minutes and gigabytes."""
    found = _Found(where)
    create(config, _Lister(found))
    return Declaration(
        found.parameters,
        found.matrices,
        tuple(found.attention),
        tuple(found.mixtures),
        frozenset(found.of_experts),
        frozenset(found.absorbed),
        tuple(found.left_out),
    )


@dataclass(slots=True)
class _Found:
    """See `Declaration`."""

    where: str
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    matrices: dict[str, Matrix] = field(default_factory=dict)
    attention: list[Heads] = field(default_factory=list)
    mixtures: list[Mixture] = field(default_factory=list)
    of_experts: list[str] = field(default_factory=list)
    absorbed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class _Lister:
    """See `Build`. Returns None in place of each weight: the constructor only stores it."""

    ops: Any = None
    max_positions = 0

    def __init__(self, found: _Found, prefix: str = "") -> None:
        self._found, self._prefix = found, prefix

    def inside(self, name: str) -> _Lister:
        return _Lister(self._found, f"{self._prefix}{name}.")

    def linear(self, *matrices: Matrix) -> Any:
        self._refuse_too_many()
        for matrix in matrices:
            self._found.parameters[self._prefix + matrix.layer] = (matrix.outputs, matrix.inputs)
            self._found.matrices[self._prefix + matrix.layer] = matrix
        for matrix in matrices:
            if matrix.has_bias:
                self._found.parameters[f"{self._prefix}{matrix.layer}.bias"] = (matrix.outputs,)

    def absorbed(self, matrix: Matrix, num_heads: int, key_dim: int) -> Any:
        self.linear(matrix)
        self._found.absorbed.append(self._prefix + matrix.layer)
        return None, None

    def experts(
        self, gate_up: Sequence[Sequence[Matrix]], down: Sequence[Matrix], activation: Activate, num_chosen: int
    ) -> Any:
        num_parameters = sum(matrix.num_parameters for matrix in (*gate_up[0], down[0]))
        self._found.mixtures.append(Mixture(len(down), num_chosen, num_parameters))
        for of_gate_up, of_down in zip(gate_up, down, strict=True):
            self.linear(*of_gate_up)
            self.linear(of_down)
            self._found.of_experts += [self._prefix + matrix.layer for matrix in (*of_gate_up, of_down)]

    def vector(self, name: str, size: int, plus: float = 0.0) -> Any:
        return self.tensor(name, (size,))

    def tensor(self, name: str, shape: tuple[int, ...]) -> Any:
        self._refuse_too_many()
        self._found.parameters[self._prefix + name] = shape

    def stacked(self, names: Sequence[str], size: int) -> Any:
        for name in names:
            self.vector(name, size)

    def wide_vector(self, name: str, size: int, plus: float = 0.0) -> Any:
        self.vector(name, size)

    def leave_out(self, scope: str) -> None:
        self._found.left_out.append(f"{self._prefix}{scope}.")

    def distance_bias(self, name: str, num_buckets: int, num_heads: int, buckets: Sequence[int]) -> Any:
        self.tensor(name, (num_buckets, num_heads))

    def filled(self, size: int, value: float) -> Any:
        return None

    def constant(self, values: Sequence[float]) -> Any:
        return None

    def table(self, rows: Callable[[int], Any]) -> Any:
        return None

    def rotation(self, rope: RopeConfig, *, interleaved: bool = False) -> Any:
        return None

    def attention(self, heads: Heads) -> int:
        self._found.attention.append(heads)
        return len(self._found.attention) - 1

    def fuse_layers(self, layers: Sequence[Layer], norm: Any) -> Any:
        return None

    def _refuse_too_many(self) -> None:
        if len(self._found.parameters) >= MAX_WEIGHTS:
            raise ModelError(
                f"{self._found.where}: the layers and experts have more than {MAX_WEIGHTS:,} weights; a model of this "
                "size is not supported"
            )
