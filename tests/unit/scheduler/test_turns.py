"""One request, however large, does not keep others from starting, and is not kept from starting for good."""

from __future__ import annotations

from array import array

import pytest

from services.scheduler.core import turns
from services.scheduler.core.plan import StepPlan
from services.scheduler.core.request import SequenceRequest
from services.scheduler.core.scheduler import RefusedError, Scheduler
from tests.unit.scheduler.driver import answer, request, scheduler

NUM_SEQS = 32


def large_scheduler(**limits: float) -> Scheduler[SequenceRequest]:
    sizes = {"num_blocks": 4096, "max_num_seqs": NUM_SEQS, "max_num_batched_tokens": 256, "max_model_len": 4096}
    return scheduler(**(sizes | limits))


def submit_many(
    core: Scheduler[SequenceRequest], name: str, count: int, prompt_len: int = 100, max_tokens: int = 2
) -> None:
    """One request of so many sequences."""
    for number in range(count):
        core.submit(request(f"{name} {number}", prompt_len, max_tokens, turn_id=name))


def step(core: Scheduler[SequenceRequest]) -> StepPlan[SequenceRequest]:
    plan = core.schedule()
    assert plan is not None
    answer(core, plan, *plan.sampling_wire_ids)
    return plan


def started(plan: StepPlan[SequenceRequest]) -> list[object]:
    return [new.sequence.request.key for new in plan.new_sequences]


def order_of_starts(core: Scheduler[SequenceRequest]) -> list[str]:
    """Of requests, until all have ended."""
    names = []
    while core.num_running + core.num_waiting:
        names += [str(key).split()[0] for key in started(step(core))]
    return names


def test_a_short_request_starts_next_whatever_others_have_asked_for() -> None:
    core = large_scheduler()
    for name in ("a", "b", "c"):
        submit_many(core, name, 200)
    step(core)
    core.submit(request("short"))
    assert "short" in started(step(core))


def test_a_short_prompt_starts_while_a_long_one_is_computed() -> None:
    core = large_scheduler()
    core.submit(request("long", prompt_len=4000))
    assert started(step(core)) == ["long"]
    core.submit(request("short"))
    assert started(step(core)) == ["short"]
    assert core.num_running == 2


def test_every_request_starts_soon_and_large_ones_end_one_after_the_other() -> None:
    core = large_scheduler()
    for name in ("a", "b", "c"):
        submit_many(core, name, 60)
    names = order_of_starts(core)
    assert {*names[:6]} == {"a", "b", "c"}
    # Those beyond a request's 64th unit of 256 tokens, each of a hundred and for its place 256 more.
    assert names[-42:] == ["a"] * 14 + ["b"] * 14 + ["c"] * 14


def test_equal_requests_start_in_the_order_of_arrival() -> None:
    core = large_scheduler()
    for number in range(200):
        core.submit(request(f"{number}", prompt_len=100))
    assert order_of_starts(core) == [str(number) for number in range(200)]


@pytest.mark.parametrize("num_seqs", [1, 16, 48])
def test_a_large_request_is_not_kept_waiting_for_good(num_seqs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though short ones never stop coming, faster than they are served. Those that came in time go first."""
    monkeypatch.setattr(turns, "_MOST_STEPS", 300)
    core = large_scheduler(max_num_seqs=num_seqs, max_num_queued_reqs=1_000_000)
    submit_many(core, "large", 40, max_tokens=1)
    num_steps = 0
    while "large 39" in core._roster.by_key:
        for number in range(num_seqs + 1):
            core.submit(request(f"short {num_steps} {number}", prompt_len=1, max_tokens=1))
        step(core)
        num_steps += 1
    assert 300 < num_steps < 2 * 300 + 100


def test_a_request_of_many_sequences_leaves_places_to_those_that_come() -> None:
    core = large_scheduler()
    submit_many(core, "many", 100, prompt_len=8, max_tokens=400)
    for _ in range(30):
        step(core)
    assert core.num_running == NUM_SEQS - NUM_SEQS // 16
    for name in ("one", "two", "three"):
        core.submit(request(name))
    assert started(step(core)) == ["one", "two"]
    core.abort("many 3")
    assert started(step(core)) == ["three"], "first in line, before what is left of many"


def test_a_request_alone_gets_all_that_a_request_can_get() -> None:
    core = large_scheduler()
    for number in range(NUM_SEQS):
        core.submit(request(f"{number}", prompt_len=1))
    step(core)
    assert core.num_running == NUM_SEQS


def test_nothing_is_remembered_of_requests_that_have_ended() -> None:
    core = large_scheduler()
    submit_many(core, "a", 50)
    core.abort("a 49")
    order_of_starts(core)
    assert not core._roster.turns._shares


def test_the_first_in_line_does_not_wait_for_good_for_what_a_later_one_computes() -> None:
    """Others, that come between the two, do not keep the later one from computing it."""
    core = large_scheduler(max_num_batched_tokens=64)
    core.submit(request("large", prompt_len=4000, cache_salt="shared"))
    step(core)
    core.submit(request("short", prompt_len=100, cache_salt="shared"))
    for number in range(30):
        core.submit(request(f"other {number}", prompt_len=64, max_tokens=1))
        keys = started(step(core))
        if "short" in keys:
            break
    assert "short" in keys


def test_a_large_request_under_way_is_not_put_off_again() -> None:
    """Though it was preempted, or comes from a scheduler that was lost."""
    core = large_scheduler(num_blocks=1024, max_model_len=4096)
    core.submit(request("large", prompt_len=2000, max_tokens=50))
    while core.num_waiting or not core._roster.running[0].has_sampled:
        step(core)
    core._preemption.preempt_last()
    core.submit(request("short"))
    assert started(step(core))[0] == "large"
    core.submit(request("moved", prompt_len=2000, output_token_ids=array("I", [9])))
    core.submit(request("another"))
    plan = step(core)
    while not started(plan):
        plan = step(core)
    assert started(plan)[0] == "moved"


def test_a_request_of_many_sequences_leaves_room_in_the_queue() -> None:
    core = large_scheduler(max_num_queued_reqs=64)
    submit_many(core, "many", 64)
    with pytest.raises(RefusedError):
        submit_many(core, "more of many", 64)
    # A sixteenth of the queue's room, and of the slots.
    for number in range(64 // 16 + NUM_SEQS // 16):
        core.submit(request(f"{number}"))
    with pytest.raises(RefusedError):
        core.submit(request("one too many"))


def test_prompts_that_are_taken_whole_have_no_time_to_meet() -> None:
    core = large_scheduler(chunked_prefill=False, max_num_batched_tokens=4096)
    for _ in range(10):
        core.step_times.observe(1, 1.0, 0.1)
    core.submit(request("long", prompt_len=3000, max_tokens=1))
    assert step(core).rows.num_scheduled_tokens.tolist() == [3000]
    with pytest.raises(ValueError, match="chunked_prefill is off"):
        large_scheduler(chunked_prefill=False, max_num_batched_tokens=4096, target_tbt_s=0.05)


def test_a_tenant_s_first_sequences_do_not_wait_for_another_tenant_s_many() -> None:
    core = large_scheduler(fair_queueing=True)
    for number in range(40):
        core.submit(request(f"many {number}", 8, 400, turn_id="many", tenant="a"))
    for _ in range(30):
        step(core)
    core._roster.waiting.serve(core._roster.running[0], -10_000)  # the least served, and still has none but later ones
    core.submit(request("one", tenant="b"))
    assert started(step(core)) == ["one"]
