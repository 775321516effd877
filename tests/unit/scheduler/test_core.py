"""What the core promises, one case each. The state machine in test_core_properties.py tries their mixtures."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from services.scheduler.core.plan import StepResult
from services.scheduler.core.prefix_cache import PrefixCache
from services.scheduler.core.request import Generate, SequenceRequest
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import EXIT_ALONE, SUSPECT, ErrorKind, Failure, FinishReason, SequencePrefix
from tests.unit.scheduler.driver import STOP, TOKEN, answer, request, rows, scheduler


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    core = scheduler()
    core.submit(request("a", prompt_len=19))
    assert rows(core.schedule()) == [(1, 0, 8)]
    assert rows(core.schedule()) == [(1, 8, 8)]
    assert rows(core.schedule()) == [(1, 16, 3)]


def test_steps_are_counted_by_their_tokens() -> None:
    core = scheduler()
    core.submit(request("a", prompt_len=19, max_tokens=1))
    plans = [core.schedule() for _ in range(3)]  # of 8, 8 and 3 tokens
    for plan, token in zip(plans, (0, 0, 1), strict=True):
        assert plan is not None
        answer(core, plan, *[token][: len(plan.sampling_wire_ids)])
    assert core.counters.scheduled_tokens == 19
    assert core.counters.steps_by_tokens[:3] == [0, 3, 0]
    core.counters.count_step(0)
    core.counters.count_step(1)
    core.counters.count_step(9)
    core.counters.count_step(16385)
    assert core.counters.steps_by_tokens == [1, 3, 1, *[0] * 10, 1]


def test_the_next_token_is_planned_before_the_last_one_is_known() -> None:
    core = scheduler()
    core.submit(request("a"))
    assert rows(core.schedule()) == [(1, 0, 3)]
    assert rows(core.schedule()) == [(1, 3, 1)]
    assert rows(core.schedule()) == [(1, 4, 1)]


def test_no_plan_goes_past_max_tokens() -> None:
    core = scheduler()
    core.submit(request("a", max_tokens=2))
    first, second = core.schedule(), core.schedule()
    assert core.schedule() is None
    assert not answer(core, first, 1).finished
    (end,) = answer(core, second, 1).finished
    assert end.reason is FinishReason.LENGTH
    assert core.memory.pool.num_used == 0


def test_decodes_come_before_prompts_that_came_before_them() -> None:
    core = scheduler(num_blocks=32)
    core.submit(request("long", prompt_len=30))
    core.submit(request("short", prompt_len=2))
    for _ in range(4):  # the long prompt takes whole steps until its last chunk leaves room
        plan = core.schedule()
    assert rows(plan) == [(1, 24, 6), (2, 0, 2)]
    core.submit(request("later", prompt_len=30))
    assert rows(core.schedule()) == [(1, 30, 1), (2, 2, 1), (3, 0, 6)]
    assert rows(core.schedule()) == [(1, 31, 1), (2, 3, 1), (3, 6, 6)]


def test_tokens_past_the_end_are_dropped() -> None:
    core = scheduler()
    core.submit(request("a"))
    first, second = core.schedule(), core.schedule()
    (end,) = answer(core, first, 1, token=STOP).finished
    assert end.reason is FinishReason.STOP
    outcome = answer(core, second, 1)
    assert not outcome.tokens
    assert not outcome.finished


def test_the_worker_is_told_what_left_with_the_next_plan() -> None:
    core = scheduler()
    core.submit(request("a"))
    first = core.schedule()
    core.abort("a")
    assert core.memory.pool.num_used == 0, "its blocks are free at once"
    second = core.schedule()
    assert second is not None
    assert list(second.released_wire_ids) == [1]
    answer(core, first, 1)
    answer(core, second)
    assert core.schedule() is None


def test_results_of_a_preempted_sequence_are_dropped() -> None:
    core = scheduler(num_blocks=4, max_model_len=16, max_num_batched_tokens=16, enable_prefix_caching=False)
    core.submit(request("old", prompt_len=7, max_tokens=9))
    core.submit(request("young", prompt_len=7, max_tokens=9))
    answer(core, core.schedule(), 1, 2)
    in_flight = core.schedule()
    core.schedule()  # preempts the young one, whose token of `in_flight` is still to come
    outcome = answer(core, in_flight, 1, 2)
    assert [sequence.request.key for sequence, *_ in outcome.tokens] == ["old"]


def test_a_resubmission_goes_on_after_the_output_it_brings() -> None:
    core = scheduler()
    core.submit(request("a", max_tokens=4, output_token_ids=array("I", [TOKEN, TOKEN])))
    plan = core.schedule()
    assert rows(plan) == [(1, 0, 5)]
    ((_, output_index, _, _),) = answer(core, plan, 1).tokens
    assert output_index == 2


def test_a_failed_sequence_fails_alone() -> None:
    core = scheduler()
    core.submit(request("a"))
    core.submit(request("b"))
    plan = core.schedule()
    assert plan is not None
    failure = Failure(ErrorKind.INVALID_ARGUMENT, "nothing is left to draw")
    outcome = core.apply(StepResult(plan.step_id, [2], [TOKEN], errors=[(1, failure)]))
    assert [sequence.request.key for sequence, *_ in outcome.tokens] == ["b"]
    (end,) = outcome.finished
    assert end.failure is failure


def test_a_sequence_that_kills_its_workers_fails_and_those_beside_it_go_on() -> None:
    core = scheduler()
    core.submit(request("good"))
    core.submit(request("poison"))
    core.submit(request("late"))
    finished = []
    for _ in range(60):
        plan = core.schedule()
        if plan is None:
            break
        keys = {row.sequence.request.key: row.wire_id for row in plan.new_sequences}
        if "poison" in keys:
            finished += core.reset(is_exit=True)
        else:
            answer(core, plan, *plan.sampling_wire_ids)
    (end,) = finished
    assert end.sequence.request.key == "poison"
    assert end.failure is not None
    assert end.failure.kind is ErrorKind.INTERNAL
    assert core.counters.preemptions == 0, "a lost worker is no preemption"
    core.check_integrity()


def test_workers_that_a_sequence_lost_elsewhere_count() -> None:
    core = scheduler()
    core.submit(request("suspect", suspicion=EXIT_ALONE))
    core.submit(request("beside"))
    assert [sequence.request.key for sequence in core.suspects()] == ["suspect"]
    core.schedule()
    (end,) = core.reset(is_exit=True)
    assert end.sequence.request.key == "suspect"
    assert end.failure is not None
    assert "exited twice" in end.failure.message
    assert core.num_waiting == 1


def test_a_token_clears_the_losses_of_a_sequence() -> None:
    core = scheduler()
    core.submit(request("suspect", suspicion=EXIT_ALONE))
    answer(core, core.schedule(), 1)
    assert core.suspects() == []
    core.schedule()
    assert core.reset(is_exit=True) == []
    assert [sequence.suspicion for sequence in core.suspects()] == [EXIT_ALONE], "it ran alone this time, too"


def test_prompt_tokens_count_where_the_sequence_was_accepted_first() -> None:
    core = scheduler()
    core.submit(request("a", prompt_len=3))
    core.submit(replace(request("b", prompt_len=3), was_accepted=True))
    assert core.counters.prompt_tokens == 3


def test_a_scheduler_counts_on_where_the_one_before_it_stopped() -> None:
    old = scheduler(num_blocks=16)
    for key in "abcd":
        old.submit(request(key, prompt_len=4, max_tokens=32))
    while not old.counters.preemptions:
        plan = old.schedule()
        assert plan is not None
        answer(old, plan, *plan.sampling_wire_ids)
    before = replace(old.counters)
    new: Scheduler[SequenceRequest] = Scheduler(old.config, old.counters)
    for sequence in old.drain():
        new.adopt(sequence)
    while new.counters.preemptions == before.preemptions:
        plan = new.schedule()
        assert plan is not None
        answer(new, plan, *plan.sampling_wire_ids)
    assert new.counters.prompt_tokens == 16, "they were counted where they came in"
    assert new.counters.starts > before.starts
    assert new.counters.generation_tokens > before.generation_tokens


@pytest.mark.parametrize("wire_ids", [(), (1,), (1, 2, 3), (1, 1)])
def test_a_result_must_bring_what_the_plan_was_to_sample(wire_ids: tuple[int, ...]) -> None:
    core = scheduler()
    core.submit(request("a"))
    core.submit(request("b"))
    with pytest.raises(ValueError, match="lacks a token or vector, or has one too many"):
        answer(core, core.schedule(), *wire_ids)


def test_results_must_come_in_order() -> None:
    core = scheduler()
    core.submit(request("a"))
    core.schedule()
    second = core.schedule()
    with pytest.raises(ValueError, match="expected 1"):
        answer(core, second, 1)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"max_num_batched_tokens": 2}, "could not decode every sequence"),
        ({"max_model_len": 65}, "could never finish"),
    ],
)
def test_limits_that_cannot_work_are_refused(overrides: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scheduler(**overrides)


def test_new_sequences_are_told_in_messages_of_bounded_size() -> None:
    core = scheduler(max_new_sequence_bytes=1000)
    for key, sampling_bytes in (("a", 400), ("b", 500), ("c", 500), ("alone", 5000), ("d", 0)):
        core.submit(request(key, prompt_len=1, sampling_bytes=sampling_bytes))
    told = [[new.sequence.request.key for new in plan.new_sequences] for _ in range(3) if (plan := core.schedule())]
    assert told == [["a", "b"], ["c"], ["alone"]]


def test_the_answers_to_one_prompt_share_it_and_one_search_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    core = scheduler(num_blocks=64, max_num_seqs=32, max_num_batched_tokens=64)
    prompt = array("I", range(30))
    requests = [
        SequenceRequest(index, prompt, Generate(2), group="g", turn_id="g", choice_index=index) for index in range(24)
    ]
    choices = [core.submit(one) for one in requests]
    assert all(choice.token_ids is prompt for choice in choices)
    cache, num_searches = core.memory.prefix_cache, 0

    def match(*arguments: Any) -> list[SequencePrefix[SequenceRequest]]:
        nonlocal num_searches
        num_searches += 1
        return PrefixCache.match(cache, *arguments)

    monkeypatch.setattr(cache, "match", match)
    answer(core, core.schedule(), 1)
    core.check_integrity()
    assert core.num_waiting == 23
    plan = core.schedule()
    core.check_integrity()
    assert plan is not None
    assert len(plan.new_sequences) == 23
    assert num_searches == 3, "before it is known, while it is computed, and once it is there"
    answer(core, plan, *plan.sampling_wire_ids)
    assert prompt == array("I", range(30))
    assert [list(choice.token_ids[30:]) for choice in choices[1:]] == [[TOKEN]] * 23


def test_a_suspect_gets_the_blocks_that_become_free_before_new_sequences() -> None:
    """Small sequences end and come all the time, and never leave enough blocks at once for the suspect."""
    core = scheduler(num_blocks=12, max_model_len=48)
    names = (f"small {number}" for number in range(1000))
    for num_tokens in (4, 8, 12):
        core.submit(request(next(names), prompt_len=8, max_tokens=num_tokens))
    for _ in range(4):  # they start
        plan = core.schedule()
        answer(core, plan, *plan.sampling_wire_ids if plan is not None else ())
    suspect = request("suspect", prompt_len=40, max_tokens=4, suspicion=SUSPECT)
    core.submit(suspect)
    for _ in range(100):
        plan = core.schedule()
        assert plan is not None
        if any(new.sequence.request is suspect for new in plan.new_sequences):
            break
        for _ in answer(core, plan, *plan.sampling_wire_ids).finished:
            core.submit(request(next(names), prompt_len=8, max_tokens=12))
    else:
        pytest.fail("the suspect never ran")
