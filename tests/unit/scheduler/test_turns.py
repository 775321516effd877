"""One request, however large, does not keep others from starting, and is not kept from starting for good."""

from __future__ import annotations

import pytest

from services.scheduler.core import turns
from services.scheduler.core.plan import StepPlan
from services.scheduler.core.scheduler import Scheduler
from tests.unit.scheduler.driver import answer, request, scheduler

NUM_SEQS = 32


def large_scheduler(**limits: int) -> Scheduler:
    sizes = {"num_blocks": 4096, "max_num_seqs": NUM_SEQS, "max_num_batched_tokens": 256, "max_model_len": 4096}
    return scheduler(**(sizes | limits))


def submit_many(core: Scheduler, name: str, count: int, prompt_len: int = 100, max_tokens: int = 2) -> None:
    """One request of so many sequences."""
    for number in range(count):
        core.submit(request(f"{name} {number}", prompt_len, max_tokens, request_id=name))


def step(core: Scheduler) -> StepPlan:
    plan = core.schedule()
    assert plan is not None
    answer(core, plan, *plan.sampling_wire_ids)
    return plan


def started(plan: StepPlan) -> list[object]:
    return [new.sequence.request.key for new in plan.new_sequences]


def order_of_starts(core: Scheduler) -> list[str]:
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
    # Twelve of each are small work.
    assert names[36:] == ["a"] * 48 + ["b"] * 48 + ["c"] * 48


def test_equal_requests_start_in_the_order_of_arrival() -> None:
    core = large_scheduler()
    for number in range(200):
        core.submit(request(f"{number}", prompt_len=100))
    assert order_of_starts(core) == [str(number) for number in range(200)]


@pytest.mark.parametrize("num_seqs", [1, 16, 48])
def test_a_large_request_is_not_kept_waiting_for_good(num_seqs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though short ones never stop coming, faster than they are served. Those that came in time go first."""
    monkeypatch.setattr(turns, "_LARGE_STEPS", 300)
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
