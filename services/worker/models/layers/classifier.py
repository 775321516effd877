"""Heads that score labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix

if TYPE_CHECKING:
    from torch import Tensor


class Classifier:
    """scores(norm(activation(dense(x)))), without a norm if there is none: [n, hidden] -> [n, num_labels]"""

    def __init__(
        self,
        build: Build,
        dense: Matrix,
        activation: Callable[[Tensor], Tensor],
        scores: Matrix,
        norm: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._dense, self._scores = build.linear(dense), build.linear(scores)
        self._activation, self._norm = activation, norm

    def __call__(self, x: Tensor) -> Tensor:
        x = self._activation(self._dense(x))
        return self._scores(x if self._norm is None else self._norm(x))


def tanh(x: Tensor) -> Tensor:
    return x.tanh()


def relu(x: Tensor) -> Tensor:
    return x.relu()
