"""Muon for the matrices inside the layers, Adam for embeddings and norms.

Muon (Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks") replaces each matrix's
momentum by the nearest orthogonal matrix. On this task it needs fewer than half of Adam's steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the quintic's coefficients from the reference


def orthogonalized(matrices: Tensor, steps: int = 5) -> Tensor:
    """The orthogonal factors of matrices [count, rows, columns], roughly: singular values end in 0.7 to 1.2."""
    a, b, c = _NEWTON_SCHULZ
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    factors: Tensor = (x.mT if tall else x).float()
    return factors


class Optimizer:
    """Both optimizers behind one `step`; learning rates are the peak's, scaled by the schedule."""

    def __init__(
        self, model: nn.Module, matrix_rate: float, other_rate: float, matrix_decay: float, momentum: float = 0.95
    ) -> None:
        named = list(model.named_parameters())
        inner = [p for name, p in named if p.dim() == 2 and "embed" not in name]
        others = [p for name, p in named if p.dim() != 2 or "embed" in name]
        # Matrices of one shape are orthogonalized in one batch.
        self._groups = [[p for p in inner if p.shape == shape] for shape in dict.fromkeys(p.shape for p in inner)]
        self._momenta = [torch.zeros(len(group), *group[0].shape) for group in self._groups]
        self._momentum = momentum
        self._matrix_rate = matrix_rate
        self._other_rate = other_rate
        self._matrix_decay = matrix_decay
        self._adam = torch.optim.Adam(others, lr=other_rate, betas=(0.9, 0.98), eps=1e-10, fused=True)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update from the gradients, at `scale` times the peak rates, and clear them."""
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            momentum.lerp_(gradient, 1 - self._momentum)
            update = orthogonalized(gradient.lerp_(momentum, self._momentum))
            rows, columns = group[0].shape
            rate = scale * self._matrix_rate * max(1.0, rows / columns) ** 0.5
            for p, change in zip(group, update, strict=True):
                p.mul_(1 - scale * self._matrix_rate * self._matrix_decay)
                p.add_(change, alpha=-rate)
                p.grad = None
        for settings in self._adam.param_groups:
            settings["lr"] = scale * self._other_rate
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
