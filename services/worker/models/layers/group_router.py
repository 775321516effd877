"""DeepSeek's choice of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Only the experts of the best groups can be chosen. Groups are equal parts of the experts, in their order."""

    num_groups: int
    num_chosen: int
    num_best: int  # a group's score is the sum of this many of its highest scores


class GroupRouter:
    """The k experts of the highest score plus bias, within the best groups. Their weights are their scores, without the
    bias. See `Router`.

    DeepSeek-V2 (2024, section 2.2.2) scores by softmax, and a group by its best expert. DeepSeek-V3 (2024, section
    2.1.2) scores by sigmoid, a group by its two best experts, and adds a bias that balances the load.
    """

    def __init__(
        self,
        score: Callable[[Tensor], Tensor],
        num_chosen: int,
        groups: ExpertGroups | None,
        bias: Tensor | None,
        *,
        normalizes: bool,
        factor: float,
    ) -> None:
        """`score`: of float32 router logits; `bias`: float32 [num_experts]; `normalizes`: whether the weights are
        scaled to a sum of 1; `factor`: of the weights, after that."""
        self.num_chosen = num_chosen
        self._score, self._groups, self._bias = score, groups, bias
        self._normalizes, self._factor = normalizes, factor

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = self._score(logits.float())
        preferences = scores if self._bias is None else scores + self._bias
        if self._groups is not None:
            preferences = _within_best(preferences, self._groups)
        expert_ids = preferences.topk(self.num_chosen, dim=-1, sorted=False).indices
        weights = scores.gather(-1, expert_ids)
        if self._normalizes:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return expert_ids, weights * self._factor


def _within_best(preferences: Tensor, groups: ExpertGroups) -> Tensor:
    """Returns -inf for experts outside the best groups, [num_tokens, num_experts]."""
    by_group = preferences.view(len(preferences), groups.num_groups, -1)
    of_groups = by_group.topk(groups.num_best, dim=-1).values.sum(-1)  # [num_tokens, num_groups]
    best = of_groups.topk(groups.num_chosen, dim=-1, sorted=False).indices
    is_closed = of_groups.new_ones(of_groups.shape).scatter(-1, best, 0.0) > 0
    return by_group.masked_fill(is_closed[..., None], -float("inf")).view(preferences.shape)
