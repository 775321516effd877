"""Feed-forward layers. Each is [num_tokens, hidden] -> [num_tokens, hidden]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import Activation


class MLP:
    """down(activation(up(x)))"""

    def __init__(self, build: Build, up: Matrix, down: Matrix, activation: Activation) -> None:
        self._ops, self._activation = build.ops, activation
        self._up, self._down = build.linear(up), build.linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._ops.activation(self._up(x), self._activation))


class GatedMLP:
    """down(activation(gate(x)) · up(x)) (Shazeer, 2020)"""

    def __init__(self, build: Build, gate_up: tuple[Matrix, ...], down: Matrix, activation: Activation) -> None:
        """`gate_up`: the gate, then up; or one matrix that holds both in this order."""
        self._ops, self._activation = build.ops, activation
        self._gate_up, self._down = build.linear(*gate_up), build.linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._ops.gated_activation(self._gate_up(x), self._activation))
