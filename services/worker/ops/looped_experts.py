"""A mixture of experts, one expert after the other: for devices on which the host may read the router's choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from services.worker.ops.interface import Activate, Activation, Linear, Ops


class LoopedExperts:
    """See `interface.Experts`. Batch-invariant if the operations are: each row of an expert's products depends on that
    row alone, and a token's outputs are added in the order of its experts."""

    def __init__(self, ops: Ops, gate_up: Sequence[Linear], down: Sequence[Linear], activation: Activate) -> None:
        self._gate_up, self._down = gate_up, down
        self._activate: Callable[[Tensor], Tensor] = (
            partial(ops.gated_activation, kind=activation) if isinstance(activation, Activation) else activation
        )

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        num_tokens, num_chosen = expert_ids.shape
        chosen = expert_ids.flatten()
        order = torch.argsort(chosen, stable=True)  # choices, expert by expert
        counts = torch.bincount(chosen, minlength=len(self._gate_up)).tolist()
        outputs = x.new_empty((num_tokens * num_chosen, x.shape[1]))
        start = 0
        for expert, count in enumerate(counts):
            if count:
                choices = order[start : start + count]
                start += count
                inputs = x[choices // num_chosen]
                outputs[choices] = self._down[expert](self._activate(self._gate_up[expert](inputs)))
        weighted = outputs.view(num_tokens, num_chosen, -1) * weights[:, :, None]
        total = weighted[:, 0].contiguous()
        for index in range(1, num_chosen):
            total += weighted[:, index]
        return total
