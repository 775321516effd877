"""What is forced, and when."""

from __future__ import annotations

import pytest

from services.worker.plan.token_constraints import ThinkingLimit
from services.worker.sampling.thinking_budget import ThinkingBudget

BEGIN, END = 1, 2


@pytest.mark.parametrize(
    ("limit", "output", "forced"),
    [
        (ThinkingLimit(0, END), [], END),
        (ThinkingLimit(0, END), [END], None),
        (ThinkingLimit(2, END), [7], None),
        (ThinkingLimit(2, END), [7, 8], END),
        (ThinkingLimit(2, END), [7, END], None),
        (ThinkingLimit(2, END), [7, 8, END, 7, 8, 9], None),
        (ThinkingLimit(0, END, BEGIN), [], None),
        (ThinkingLimit(0, END, BEGIN), [7, 8, 9], None),
        (ThinkingLimit(0, END, BEGIN), [BEGIN], END),
        (ThinkingLimit(1, END, BEGIN), [7, BEGIN, 8], END),
        # Only the first reasoning counts.
        (ThinkingLimit(1, END, BEGIN), [BEGIN, END, BEGIN, 7, 8], None),
        (ThinkingLimit(9, END, BEGIN), [END, BEGIN, 7], None),
    ],
)
def test_the_end_is_forced_once_the_budget_is_spent(
    limit: ThinkingLimit, output: list[int], forced: int | None
) -> None:
    budget = ThinkingBudget(limit)
    for token_id in output:
        budget.observe(token_id)
    assert budget.forced == forced


@pytest.mark.parametrize(
    ("limit", "output", "num_free"),
    [
        (ThinkingLimit(0, END), [], 0),
        (ThinkingLimit(5, END), [], 5),
        (ThinkingLimit(5, END), [7, 8], 3),
        (ThinkingLimit(5, END), [7, END], None),
        # The next token may be the one that begins the reasoning.
        (ThinkingLimit(5, END, BEGIN), [7, 8], 6),
        (ThinkingLimit(5, END, BEGIN), [7, BEGIN], 5),
    ],
)
def test_so_many_tokens_can_be_drawn_unseen(limit: ThinkingLimit, output: list[int], num_free: int | None) -> None:
    budget = ThinkingBudget(limit)
    for token_id in output:
        budget.observe(token_id)
    assert budget.num_free_tokens == num_free
