"""Mixtures of experts. Each is [num_tokens, hidden] -> [num_tokens, hidden]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from services.worker.models.build import Build, Matrix

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import Activation


class Router(Protocol):
    """Chooses experts for each token."""

    @property
    def num_chosen(self) -> int:
        """k, the number of experts of a token."""
        ...

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """From router logits [num_tokens, num_experts] to the ids and the weights of those chosen, [num_tokens, k]
        each."""
        ...


class MoE:
    """Σ w_e · expert_e(x) over the experts that the router chooses for each token, plus shared(x)."""

    def __init__(
        self,
        build: Build,
        gate: Matrix,
        router: Router,
        gate_up: Sequence[Sequence[Matrix]],
        down: Sequence[Matrix],
        activation: Activation,
        shared: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`gate`: from a token to its router logits; `gate_up` and `down`: the matrices of each expert; `shared`: the
        experts that every token takes."""
        self._router, self._shared = router, shared
        self._gate = build.linear(gate)
        self._experts = build.experts(gate_up, down, activation, router.num_chosen)

    def __call__(self, x: Tensor) -> Tensor:
        expert_ids, weights = self._router(self._gate(x))
        mixed = self._experts(x, expert_ids, weights.to(x.dtype))
        return mixed if self._shared is None else mixed + self._shared(x)


class ChosenSoftmaxRouter:
    """The k experts of the highest logits; their weights are the softmax of these k logits. See `Router`."""

    def __init__(self, num_chosen: int) -> None:
        self.num_chosen = num_chosen

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        chosen, expert_ids = logits.float().topk(self.num_chosen, dim=-1)
        return expert_ids, chosen.softmax(-1)


class SoftmaxRouter:
    """The k experts of the highest probability; their weights are the probabilities, which `normalizes` scales to a sum
    of 1. See `Router`."""

    def __init__(self, num_chosen: int, *, normalizes: bool) -> None:
        self.num_chosen, self._normalizes = num_chosen, normalizes

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        weights, expert_ids = logits.float().softmax(-1).topk(self.num_chosen, dim=-1)
        if self._normalizes:
            weights = weights / weights.sum(-1, keepdim=True)
        return expert_ids, weights
