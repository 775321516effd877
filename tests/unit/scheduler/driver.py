"""A core, requests for it, and a worker that answers as a test tells it to."""

from __future__ import annotations

from array import array
from typing import Any

from services.scheduler.core.config import CoreConfig
from services.scheduler.core.outcome import StepOutcome
from services.scheduler.core.plan import StepPlan, StepResult
from services.scheduler.core.request import Generate, SequenceRequest
from services.scheduler.core.scheduler import Scheduler

TOKEN = 50
STOP = 7


def scheduler(**overrides: Any) -> Scheduler[SequenceRequest]:
    limits = {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 64}
    return Scheduler(CoreConfig(**(limits | overrides)))


def request(key: str, prompt_len: int = 3, max_tokens: int = 10, **fields: object) -> SequenceRequest:
    work = Generate(max_tokens, frozenset([STOP]))
    # Nothing in common with others, unless a test wants it.
    fields = {"work": work, "cache_salt": key, "prompt_token_ids": array("I", range(prompt_len))} | fields
    return SequenceRequest(key, **fields)  # type: ignore[arg-type]


def rows(plan: StepPlan[SequenceRequest] | None) -> list[tuple[int, int, int]]:
    """(wire id, tokens computed before, tokens scheduled) of each row."""
    assert plan is not None
    columns = (plan.rows.wire_ids, plan.rows.num_computed_tokens, plan.rows.num_scheduled_tokens)
    return list(zip(*columns, strict=True))


def answer(
    core: Scheduler[SequenceRequest], plan: StepPlan[SequenceRequest] | None, *wire_ids: int, token: int = TOKEN
) -> StepOutcome[SequenceRequest]:
    """The result of `plan` in which `wire_ids` sampled `token`."""
    assert plan is not None
    return core.apply(StepResult(plan.step_id, wire_ids, [token] * len(wire_ids)))
