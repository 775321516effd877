"""Norms over the last dimension. Each is [..., features] -> [..., features]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.models.build import Build

if TYPE_CHECKING:
    from torch import Tensor


class RMSNorm:
    """x / sqrt(mean(x²) + eps) · (weight + plus) (Zhang and Sennrich, 2019)."""

    def __init__(self, build: Build, name: str, size: int, eps: float, plus: float = 0.0) -> None:
        self._ops, self._eps = build.ops, eps
        self._weight = build.vector(f"{name}.weight", size, plus)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps)


class LayerNorm:
    """(x - mean(x)) / sqrt(var(x) + eps) · weight + bias (Ba et al., 2016). Weight and bias are 1 and 0 if they are not
    stored."""

    def __init__(
        self, build: Build, name: str, size: int, eps: float, *, has_weight: bool = True, has_bias: bool = True
    ) -> None:
        self._ops, self._eps = build.ops, eps
        self._weight = build.vector(f"{name}.weight", size) if has_weight else build.filled(size, 1.0)
        self._bias = build.vector(f"{name}.bias", size) if has_bias else build.filled(size, 0.0)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Norms x + residual, if there is a residual."""
        return self._ops.layer_norm(x, self._weight, self._bias, self._eps, residual)
