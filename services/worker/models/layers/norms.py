"""Norms over the last dimension. Each is [..., features] -> [..., features]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.worker.models.build import Build

if TYPE_CHECKING:
    from torch import Tensor


class RMSNorm:
    """x / sqrt(mean(x²) + eps) · (weight + plus) (Zhang and Sennrich, 2019)."""

    def __init__(self, build: Build, name: str, size: int, eps: float, plus: float = 0.0) -> None:
        self._ops, self._eps = build.ops, eps
        # Weights around 0 have more digits than weights around 1. In bfloat16, the sum would lose them.
        take = build.wide_vector if plus else build.vector
        self._weight = take(f"{name}.weight", size, plus)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self._weight, self._eps)


class LayerNorm:
    """(x - mean(x)) / sqrt(var(x) + eps) · (weight + plus) + bias (Ba et al., 2016). Weight and bias are 1 and 0 if
    they are not stored."""

    def __init__(
        self,
        build: Build,
        name: str,
        size: int,
        eps: float,
        plus: float = 0.0,
        *,
        has_weight: bool = True,
        has_bias: bool = True,
    ) -> None:
        self._ops, self._eps = build.ops, eps
        self._weight = build.vector(f"{name}.weight", size, plus) if has_weight else build.filled(size, 1.0)
        self._bias = build.vector(f"{name}.bias", size) if has_bias else build.filled(size, 0.0)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Norms x + residual, if there is a residual."""
        return self._ops.layer_norm(x, self._weight, self._bias, self._eps, residual)


class LayerNormOfHeads:
    """LayerNorm of each head by itself, with weights of its own and without bias (Dehghani et al., 2023, section 2)."""

    def __init__(self, build: Build, weight: Tensor, head_dim: int, eps: float) -> None:
        """`weight`: [heads, head_dim]."""
        self._ops, self._weight, self._eps = build.ops, weight, eps
        self._one, self._zero = build.filled(head_dim, 1.0), build.filled(head_dim, 0.0)

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, heads, head_dim] to the same shape."""
        return self._ops.layer_norm(x, self._one, self._zero, self._eps) * self._weight


class NormOverHeads:
    """One norm over all heads of a token together (OLMo 2)."""

    def __init__(self, norm: Callable[[Tensor], Tensor]) -> None:
        """`norm`: of size heads · head_dim."""
        self._norm = norm

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, heads, head_dim] to the same shape. x can be a view of heads inside a fused projection."""
        return self._norm(x.flatten(1).unsqueeze(1)).view(x.shape)


class NoNorm:
    """Leaves x as it is."""

    def __call__(self, x: Tensor) -> Tensor:
        return x
