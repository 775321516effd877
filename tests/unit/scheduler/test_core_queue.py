"""Who is let in, who waits, and who gives way, one case each."""

from __future__ import annotations

import random
from array import array
from collections import deque

import pytest

from services.scheduler.core.config import PreemptionMode
from services.scheduler.core.plan import StepPlan
from services.scheduler.core.request import SequenceRequest
from services.scheduler.core.scheduler import RefusedError, Scheduler
from services.scheduler.core.sequence import ErrorKind, Sequence, Status
from tests.unit.scheduler.driver import TOKEN, answer, request, rows, scheduler


def test_a_sequence_starts_only_when_its_whole_prompt_has_room() -> None:
    core = scheduler(num_blocks=6, max_model_len=24, max_num_batched_tokens=8)
    core.submit(request("a", prompt_len=16, max_tokens=1))
    core.submit(request("b", prompt_len=12, max_tokens=1))
    assert rows(core.schedule()) == [(1, 0, 8)]
    assert rows(core.schedule()) == [(1, 8, 8)]
    assert core.schedule() is None, "four blocks are taken and b needs three"
    assert (core.num_running, core.num_waiting) == (1, 1)


def test_the_latest_arrival_gives_way_and_comes_back_under_another_name() -> None:
    core = scheduler(num_blocks=4, max_model_len=16, max_num_batched_tokens=16, enable_prefix_caching=False)
    core.submit(request("old", prompt_len=7, max_tokens=9))
    core.submit(request("young", prompt_len=7, max_tokens=9))
    answer(core, core.schedule(), 1, 2)
    answer(core, core.schedule(), 1, 2)  # both blocks of both are full now
    plan = core.schedule()
    assert rows(plan) == [(1, 8, 1)]
    assert plan is not None
    assert list(plan.released_wire_ids) == [2]
    assert (core.num_running, core.num_waiting) == (1, 1)
    core.abort("old")
    resumed = core.schedule()
    assert resumed is not None
    assert rows(resumed) == [(3, 0, 9)], "prompt and both tokens known are computed anew"
    assert list(resumed.new_sequences[0].sequence.token_ids) == [*range(7), TOKEN, TOKEN]


def test_a_deadline_ends_waiting_and_running_sequences() -> None:
    core = scheduler(max_num_seqs=1)
    core.submit(request("running", deadline=5.0))
    core.submit(request("waiting", deadline=4.0))
    core.submit(request("patient"))
    core.schedule()
    assert core.expire(3.9) == []
    ends = core.expire(5.0)
    assert [end.sequence.request.key for end in ends] == ["waiting", "running"]
    assert all(end.failure and end.failure.kind is ErrorKind.DEADLINE_EXCEEDED for end in ends)
    assert core.num_waiting == 1


def test_deadlines_of_the_dead_do_not_pile_up() -> None:
    core = scheduler()
    for index in range(1_000):
        core.submit(request(str(index), deadline=1e9))
        core.abort(str(index))
    assert len(core._roster._deadlines) < 100


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_len": 0}, "empty"),
        ({"prompt_len": 60, "max_tokens": 5}, "context of 64"),
        ({"max_tokens": 1, "output_token_ids": array("I", [TOKEN])}, "nothing is left"),
    ],
)
def test_what_can_never_run_is_refused(fields: dict[str, int], words: str) -> None:
    core = scheduler()
    with pytest.raises(RefusedError, match=words):
        core.submit(request("a", **fields))
    assert core.num_waiting == 0


def test_work_of_a_lost_scheduler_is_taken_however_long_the_queue() -> None:
    core = scheduler(max_num_queued_reqs=1, max_num_seqs=1)
    core.submit(request("runs"))
    core.submit(request("waits"))
    with pytest.raises(RefusedError):
        core.submit(request("new"))
    core.submit(request("from another", was_accepted=True))
    assert core.num_waiting == 3


def test_free_places_in_the_batch_count_beside_the_queue() -> None:
    core = scheduler(max_num_queued_reqs=2, max_num_seqs=4)
    core.check_room("many", 6)
    with pytest.raises(RefusedError):
        core.check_room("many", 7)
    for number in range(6):
        core.submit(request(f"{number}", prompt_len=1, turn_id="many"))
    core.schedule()
    assert (core.num_running, core.num_waiting) == (4, 2)
    with pytest.raises(RefusedError) as refused:
        core.check_room("another", 1)
    assert refused.value.failure.kind is ErrorKind.RESOURCE_EXHAUSTED
    assert "2 sequences are waiting" in refused.value.failure.message
    core.abort("0")
    core.check_room("another", 1)


def test_slots_are_no_free_places_while_the_cache_is_full() -> None:
    core = scheduler(max_num_queued_reqs=1, num_blocks=16, max_model_len=64, max_num_batched_tokens=64)
    core.submit(request("long", prompt_len=60, max_tokens=4))
    answer(core, core.schedule(), 1)
    core.check_room("new", 1)
    for _ in range(2):
        answer(core, core.schedule(), 1)
    assert core.memory.pool.num_free == 0
    core.check_room("new", 1)
    with pytest.raises(RefusedError):
        core.check_room("new", 2)


def test_a_request_whose_own_sequences_fill_the_cache_is_a_bad_one() -> None:
    core = scheduler(max_num_queued_reqs=1, num_blocks=16, max_model_len=64, max_num_batched_tokens=64)
    core.submit(request("0", prompt_len=60, max_tokens=4, turn_id="many"))
    for _ in range(3):
        answer(core, core.schedule(), 1)
    assert core.memory.pool.num_free == 0
    core.submit(request("1", prompt_len=60, max_tokens=4, turn_id="many"))
    with pytest.raises(RefusedError) as refused:
        core.check_room("many", 1)
    assert refused.value.failure.kind is ErrorKind.INVALID_ARGUMENT
    assert "at least 3 sequences, but this server accepts at most 2 per request" in refused.value.failure.message
    with pytest.raises(RefusedError) as refused:
        core.check_room("another", 1)
    assert refused.value.failure.kind is ErrorKind.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("num_here", [0, 3])
def test_a_request_that_never_fits_is_a_bad_one(num_here: int) -> None:
    core = scheduler(max_num_queued_reqs=2)
    for number in range(num_here):
        core.submit(request(f"{number}", turn_id="many"))
    with pytest.raises(RefusedError) as refused:
        core.check_room("many", 7 - num_here)
    assert refused.value.failure.kind is ErrorKind.INVALID_ARGUMENT
    assert refused.value.failure.field == "choices"
    assert "at least 7 sequences" in refused.value.failure.message
    assert "at most 6" in refused.value.failure.message


def test_a_drained_sequence_is_adopted_however_long_the_queue() -> None:
    old, new = scheduler(), scheduler(max_num_queued_reqs=1)
    old.submit(request("a"))
    answer(old, old.schedule(), 1)
    new.submit(request("b"))
    for sequence in old.drain():
        new.adopt(sequence)
    assert rows(new.schedule()) == [(1, 0, 4), (2, 0, 3)], "who had started goes on first"
    assert new.counters.prompt_tokens == 3, "it was counted where it came in"


def test_a_sequence_that_fits_no_other_group_is_not_drained_for_it() -> None:
    large, small = scheduler(max_model_len=64), scheduler(max_model_len=16)
    for key, max_tokens in (("a", 60), ("b", 13), ("c", 14)):
        large.submit(request(key, prompt_len=3, max_tokens=max_tokens))
    assert [sequence.request.key for sequence in large.drain([small])] == ["b"]
    assert [sequence.request.key for sequence in large.drain()] == ["a", "c"]


def test_the_lower_priority_waits_and_gives_way_whoever_came_first() -> None:
    core = scheduler(num_blocks=4, max_model_len=16, max_num_batched_tokens=16, max_num_seqs=2)
    core.submit(request("batch", prompt_len=7, max_tokens=9, priority=1))
    answer(core, core.schedule(), 1)
    core.submit(request("chat", prompt_len=7, max_tokens=9))
    core.submit(request("later batch", prompt_len=7, max_tokens=9, priority=1))
    answer(core, core.schedule(), 1, 2)
    answer(core, core.schedule(), 2)  # a block is short, and the one that came first gives way
    assert [sequence.request.key for sequence in core._roster.running] == ["chat"]
    core.abort("chat")
    plan = core.schedule()
    assert plan is not None
    assert [new.sequence.request.key for new in plan.new_sequences] == ["batch"]


def serve_all(core: Scheduler[SequenceRequest], num_steps: int) -> list[str]:
    """Whose sequences ended, in order."""
    ended = []
    for _ in range(num_steps):
        plan = core.schedule()
        if plan is None:
            break
        outcome = answer(core, plan, *plan.sampling_wire_ids)
        ended += [end.sequence.request.tenant for end in outcome.finished]
    return ended


def test_a_tenant_that_asks_for_much_does_not_keep_another_waiting() -> None:
    core = scheduler(max_num_seqs=1, fair_queueing=True)
    for number in range(6):
        core.submit(request(f"much {number}", tenant="much", max_tokens=2))
    ended = serve_all(core, 4)
    assert ended == ["much", "much"]
    for number in range(2):
        core.submit(request(f"little {number}", tenant="little", max_tokens=2))
    # One is level with the other when it comes: it is not served for the time before.
    assert serve_all(core, 100) == ["little", "much", "little", "much", "much", "much"]


def test_turns_are_by_tokens_not_by_requests() -> None:
    core = scheduler(max_num_seqs=1, fair_queueing=True, max_num_batched_tokens=32)
    for number in range(2):
        core.submit(request(f"long {number}", tenant="long", prompt_len=25, max_tokens=5))
    for number in range(8):
        core.submit(request(f"short {number}", tenant="short", prompt_len=5, max_tokens=5))
    assert serve_all(core, 100) == ["long", "short", "short", "short", "long", *["short"] * 5]


def test_what_a_tenant_had_while_it_was_alone_is_not_held_against_it() -> None:
    core = scheduler(max_num_seqs=1, fair_queueing=True)
    for number in range(5):
        core.submit(request(f"alone {number}", tenant="a", max_tokens=2))
    serve_all(core, 100)
    for number in range(3):
        core.submit(request(f"b {number}", tenant="b", max_tokens=2))
        core.submit(request(f"a {number}", tenant="a", max_tokens=2))
    assert serve_all(core, 100) == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize("fair", [False, True])
def test_the_oldest_always_moves_on_whatever_comes_after_it(mode: PreemptionMode, fair: bool) -> None:
    """No starvation: sequences come faster than they can be served, each as much as memory holds or next to nothing,
    a third of them with beginnings that others compute, and whoever computes one may leave at any time. Whoever is the
    oldest of its tenant gets a row of every step or two, so it ends in time.
    """
    chance = random.Random(7)
    core = scheduler(num_host_blocks=8, preemption_mode=mode, fair_queueing=fair, max_num_queued_reqs=100_000)
    tenants = ("a", "b") if fair else ("a",)
    oldest: dict[str, tuple[Sequence[SequenceRequest], int]] = {}  # by tenant, and the step at which it became so
    alive: dict[str, dict[int, Sequence[SequenceRequest]]] = {tenant: {} for tenant in tenants}
    in_flight: deque[StepPlan[SequenceRequest]] = deque()
    longest = ended = 0
    for step in range(4000):
        if step % 3 == 0:
            prompt_len, max_tokens = chance.choice(((50, 14), (2, 60), (2, 2), (30, 1), (13, 20)))
            salt = "shared" if chance.random() < 1 / 3 else f"own {step}"
            tenant = chance.choice(tenants)
            sequence = core.submit(request(f"{step}", prompt_len, max_tokens, cache_salt=salt, tenant=tenant))
            alive[tenant][sequence.arrival] = sequence
        while len(in_flight) < 2 and (plan := core.schedule()) is not None:
            in_flight.append(plan)
        core.check_integrity()
        plan = in_flight.popleft()
        outcome = answer(core, plan, *plan.sampling_wire_ids)
        gone = [end.sequence for end in outcome.finished]
        if step % 50 == 0:
            others = [s for by_arrival in alive.values() for s in by_arrival.values() if s.status is Status.RUNNING]
            others = [s for s in others if s not in gone and all(s is not first for first, _ in oldest.values())]
            if others:
                gone.append(chance.choice(others))
                core.abort(gone[-1].request.key)
        for sequence in gone:
            del alive[sequence.request.tenant][sequence.arrival]
            ended += 1
        for tenant, sequences in alive.items():
            first = next(iter(sequences.values()), None)
            if first is not None and (tenant not in oldest or oldest[tenant][0] is not first):
                oldest[tenant] = (first, step)
            elif first is not None:
                longest = max(longest, step - oldest[tenant][1])
    assert ended > 100
    assert core.counters.preemptions > 100
    # At most 60 tokens one by one and 8 steps of prompt, all of it a second time for each tenant beside it.
    assert longest <= 2 * len(tenants) * 68, longest
