"""Lists the weights and the pages of a network, without torch and before a file is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from services.worker.models.build import Build, Matrix

if TYPE_CHECKING:
    from services.worker.models.rope import RopeConfig
    from services.worker.ops import Activation, Heads, Layer

Parameter = tuple[str, tuple[int, ...]]
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a network is made of."""

    # Shape of each weight by its name, in the order in which the network takes them. A matrix has its layer's name
    # (`model.layers.0.mlp.up_proj`), because it may be stored as several tensors. Norms and biases have their full
    # names (`model.norm.weight`).
    parameters: Mapping[str, tuple[int, ...]]
    attention: tuple[Heads, ...]  # heads of each layer with attention
    has_experts: bool  # whether a layer is a mixture of experts


def declare(create: Callable[[ConfigT, Build], object], config: ConfigT) -> Declaration:
    """`create`: a network's constructor."""
    found = _Found()
    create(config, _Lister(found))
    return Declaration(found.parameters, tuple(found.attention), found.has_experts)


@dataclass(slots=True)
class _Found:
    """See `Declaration`."""

    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    attention: list[Heads] = field(default_factory=list)
    has_experts: bool = False


class _Lister:
    """See `Build`. Returns None in place of each weight: the constructor only stores it."""

    ops: Any = None

    def __init__(self, found: _Found, prefix: str = "") -> None:
        self._found, self._prefix = found, prefix

    def inside(self, name: str) -> _Lister:
        return _Lister(self._found, f"{self._prefix}{name}.")

    def linear(self, *matrices: Matrix) -> Any:
        for matrix in matrices:
            shape = (matrix.inputs, matrix.outputs) if matrix.is_transposed else (matrix.outputs, matrix.inputs)
            self._found.parameters[self._prefix + matrix.name] = shape
        for matrix in matrices:
            if matrix.has_bias:
                self._found.parameters[f"{self._prefix}{matrix.name}.bias"] = (matrix.outputs,)

    def experts(self, gate_up: Sequence[Sequence[Matrix]], down: Sequence[Matrix], activation: Activation) -> Any:
        self._found.has_experts = True
        for of_gate_up, of_down in zip(gate_up, down, strict=True):
            self.linear(*of_gate_up)
            self.linear(of_down)

    def vector(self, name: str, size: int, plus: float = 0.0) -> Any:
        self._found.parameters[self._prefix + name] = (size,)

    def distance_bias(self, name: str, num_buckets: int, num_heads: int, buckets: Sequence[int]) -> Any:
        self._found.parameters[self._prefix + name] = (num_buckets, num_heads)

    def filled(self, size: int, value: float) -> Any:
        return None

    def constant(self, values: Sequence[float]) -> Any:
        return None

    def rotation(self, rope: RopeConfig, *, interleaved: bool = False) -> Any:
        return None

    def attention(self, heads: Heads) -> int:
        self._found.attention.append(heads)
        return len(self._found.attention) - 1

    def fuse_layers(self, layers: Sequence[Layer], norm: Any) -> Any:
        return None
