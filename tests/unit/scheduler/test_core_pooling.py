"""Sequences whose one result is a vector."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from services.scheduler.core.outcome import FinishedSequence
from services.scheduler.core.plan import StepPlan, StepResult
from services.scheduler.core.request import Pool, SequenceRequest
from services.scheduler.core.scheduler import RefusedError, Scheduler
from services.scheduler.core.sequence import FinishReason
from tests.unit.scheduler.driver import request, rows, scheduler


def pooled(key: str, prompt_len: int = 3, needs_all_tokens: bool = False, **fields: Any) -> Any:
    return request(key, prompt_len, work=Pool(needs_all_tokens), **fields)


def finish(
    core: Scheduler[SequenceRequest], plan: StepPlan[SequenceRequest] | None, *wire_ids: int
) -> list[FinishedSequence[SequenceRequest]]:
    assert plan is not None
    vectors = [(wire_id, b"vector") for wire_id in wire_ids]
    return core.apply(StepResult(plan.step_id, array("I"), array("I"), pooled=vectors)).finished


def test_a_prompt_comes_in_chunks_and_its_vector_ends_it() -> None:
    core = scheduler()
    core.submit(pooled("a", 10))
    first, second = core.schedule(), core.schedule()
    assert (rows(first), rows(second)) == ([(1, 0, 8)], [(1, 8, 2)])
    assert core.schedule() is None, "nothing follows a vector"
    assert finish(core, first) == []
    (end,) = finish(core, second, 1)
    assert (end.reason, end.embedding, end.failure) == (FinishReason.STOP, b"vector", None)
    assert core.memory.pool.num_used == 0
    assert core.num_running == core.num_outstanding_tokens == 0
    core.check_integrity()


def test_a_prompt_as_long_as_the_context_needs_no_room_for_output() -> None:
    core = scheduler(max_model_len=16)
    core.submit(pooled("a", 16))
    with pytest.raises(RefusedError, match="exceed the context"):
        core.submit(pooled("b", 17))


def test_vectors_share_a_step_with_tokens() -> None:
    core = scheduler()
    core.submit(request("a", 3))
    core.submit(pooled("b", 4))
    plan = core.schedule()
    assert plan is not None
    assert rows(plan) == [(1, 0, 3), (2, 0, 4)]
    outcome = core.apply(StepResult(plan.step_id, array("I", [1]), array("I", [50]), pooled=[(2, b"v")]))
    assert [token for _, _, token, _ in outcome.tokens] == [50]
    assert [end.embedding for end in outcome.finished] == [b"v"]


@pytest.mark.parametrize(
    ("tokens", "vectors", "message"),
    [
        ([], [], "lacks a token"),
        ([2], [2], "one too many"),
        ([2], [], "a token where a vector was expected"),
    ],
)
def test_a_vector_that_is_missing_doubled_or_a_token_breaks_the_contract(
    tokens: list[int], vectors: list[int], message: str
) -> None:
    core = scheduler()
    core.submit(request("a", 3))
    core.submit(pooled("b", 4))
    plan = core.schedule()
    assert plan is not None
    wire_ids = array("I", [1, *tokens])
    result = StepResult(plan.step_id, wire_ids, array("I", [50] * len(wire_ids)), pooled=[(v, b"v") for v in vectors])
    with pytest.raises(ValueError, match=message):
        core.apply(result)
    # The worker is given up, and nothing of what it said wrongly stays.
    core.reset()
    core.check_integrity()
    assert {len(sequence.token_ids) for sequence in core.drain() if sequence.request.key == "b"} == {4}


def test_a_vector_where_a_token_was_to_come_breaks_the_contract() -> None:
    core = scheduler()
    core.submit(request("a", 3))
    with pytest.raises(ValueError, match="a vector where a token was expected"):
        finish(core, core.schedule(), 1)


def test_the_last_token_s_vector_takes_a_known_prefix_and_leaves_one() -> None:
    core = scheduler()
    for key, computed in (("a", 0), ("b", 4)):
        core.submit(pooled(key, 6, cache_salt="shared"))
        plan = core.schedule()
        assert plan is not None
        assert plan.rows.num_computed_tokens.tolist() == [computed]
        finish(core, plan, plan.rows.wire_ids[0])


def test_a_vector_of_all_tokens_neither_takes_a_prefix_nor_waits_for_one() -> None:
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("a", 6, cache_salt="shared"))
    core.submit(pooled("b", 6, needs_all_tokens=True, cache_salt="shared"))
    assert rows(core.schedule()) == [(1, 0, 6), (2, 0, 6)]
    core.check_integrity()


def test_a_vector_of_all_tokens_is_computed_from_the_start_after_a_preemption() -> None:
    core = scheduler(
        num_blocks=4, max_model_len=16, max_num_batched_tokens=4, num_host_blocks=8, seconds_per_swapped_block=0.0
    )
    core.submit(request("a", 3, 12))
    core.submit(pooled("b", 12, needs_all_tokens=True))
    restarts = 0
    while core.num_running or core.num_waiting:
        plan = core.schedule()
        assert plan is not None
        restarts += sum(new.sequence.request.key == "b" for new in plan.new_sequences)
        assert all(new.num_computed_tokens == 0 for new in plan.new_sequences if new.sequence.request.key == "b")
        by_id = {s.wire_id: s for s in core._roster.running}
        done = [w for w in plan.sampling_wire_ids if by_id[w].request.work.gives_vector]
        tokens = array("I", [w for w in plan.sampling_wire_ids if w not in done])
        vectors = [(wire_id, b"v") for wire_id in done]
        core.apply(StepResult(plan.step_id, tokens, array("I", [50] * len(tokens)), pooled=vectors))
        core.check_integrity()
    assert core.counters.swapped_in_blocks == 0
    assert restarts == 2


def test_a_prompt_that_must_be_whole_waits_for_a_step_with_room() -> None:
    core = scheduler(chunked_prefill=False, max_num_batched_tokens=8, max_model_len=8)
    for key in "abc":
        core.submit(pooled(key, 5, needs_all_tokens=True))
    assert [rows(core.schedule()) for _ in range(3)] == [[(1, 0, 5)], [(2, 0, 5)], [(3, 0, 5)]]
    with pytest.raises(ValueError, match="chunked_prefill is off"):
        scheduler(chunked_prefill=False, max_num_batched_tokens=8, max_model_len=9)
