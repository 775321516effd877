"""Mixtures of experts of transformers, computed by Quire."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models.build import Build, Matrix
from services.worker.models.generic.skeleton import Skeleton


def take_experts(skeleton: Skeleton, prefix: str, module: Any, num_chosen: int, build: Build) -> None:
    """Lets Quire compute the experts of the module `prefix`, for which `is_experts` holds. The model's own router still
    chooses among them. `num_chosen`: experts that a token takes."""
    if getattr(module, "has_post_expert_norm", False):  # older versions of transformers have no such models
        raise ModelError(f"{skeleton.where}: {prefix} norms the outputs of its experts, which is not supported")
    first = "gate_up_proj" if module.has_gate else "up_proj"
    up, down = (_matrices(skeleton, f"{prefix}.{name}", module) for name in (first, "down_proj"))
    activate: Any = module._apply_gate if module.has_gate else module.act_fn
    experts = build.experts(up, [matrix for (matrix,) in down], activate, num_chosen)

    def compute(hidden_states: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        # With some routers, the order of a token's experts depends on the batch. Outputs are added in this order, so it
        # is made the same in every batch.
        expert_ids, order = expert_ids.sort(dim=-1)
        return experts(hidden_states, expert_ids, weights.gather(-1, order).to(hidden_states.dtype))

    module.forward = compute


def _matrices(skeleton: Skeleton, name: str, module: Any) -> list[list[Matrix]]:
    """Returns the matrices of each expert whose joined outputs the parameter `name` computes."""
    parameter = skeleton.model.get_parameter(name)
    parts = skeleton.stored_parts(name)
    stored, *others = parts
    if not others and parts[stored].shape == parameter.shape:
        num_experts, *sizes = parameter.shape
        inputs, outputs = sizes if module.is_transposed else reversed(sizes)
        matrix = Matrix(stored, outputs, inputs, module.has_bias, module.is_transposed)
        return [[one] for one in matrix.stacked(num_experts)]
    experts: dict[int, list[Matrix]] = {}
    for part, tensor in parts.items():
        number = re.search(r"\.(\d+)\.[a-z0-9_]+\.weight$", part)
        if number is None or tensor.dim() != 2 or module.is_transposed or module.has_bias:
            raise ModelError(f"{skeleton.where}: checkpoints store {name} as {part}, which is not supported")
        matrix = Matrix(part.removesuffix(".weight"), tensor.shape[0], tensor.shape[1])
        experts.setdefault(int(number[1]), []).append(matrix)
    return [experts[index] for index in range(parameter.shape[0])]
