"""A sequence that needs something of its worker first waits for it alone: everybody else is planned meanwhile."""

from __future__ import annotations

from array import array

import pytest

from services.scheduler.core.config import CoreConfig
from services.scheduler.core.outcome import StepOutcome
from services.scheduler.core.plan import StepResult
from services.scheduler.core.preparations import MAX_PENDING, MAX_PENDING_SINGLE, MAX_READY, Preparations
from services.scheduler.core.request import Generate, Preparation, SequenceRequest
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import SUSPECT, ErrorKind, Failure

A, B, C = (Preparation(key, f"grammar {key.decode()}") for key in (b"a", b"b", b"c"))
FULL = Failure(ErrorKind.INVALID_ARGUMENT, "the text is too long")


def core() -> Scheduler[SequenceRequest]:
    return Scheduler(
        CoreConfig(num_blocks=64, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)
    )


def submit(core: Scheduler[SequenceRequest], key: int, needs: Preparation | None = None) -> None:
    core.submit(SequenceRequest(key, array("I", [key + 1, 2, 3]), Generate(8), needs=needs))


def planned(core: Scheduler[SequenceRequest]) -> list[object]:
    """Keys of the sequences that the next step begins; the step is run."""
    plan = core.schedule()
    core.check_integrity()
    if plan is None:
        return []
    keys = [new.sequence.request.key for new in plan.new_sequences]
    core.apply(StepResult(plan.step_id, plan.sampling_wire_ids, array("I", [9] * len(plan.sampling_wire_ids))))
    core.check_integrity()
    return keys


def outgrow(scheduler: Scheduler[SequenceRequest]) -> StepOutcome[SequenceRequest]:
    """Runs a step whose only sequence has outgrown its preparation."""
    plan = scheduler.schedule()
    assert plan is not None
    outcome = scheduler.apply(StepResult(plan.step_id, [], [], outgrown=[(plan.sampling_wire_ids[0], FULL)]))
    scheduler.check_integrity()
    return outcome


def test_others_are_planned_until_it_is_prepared() -> None:
    scheduler = core()
    submit(scheduler, 0, A)
    submit(scheduler, 1)
    submit(scheduler, 2, B)
    submit(scheduler, 3, A)
    assert planned(scheduler) == [1]
    assert scheduler.preparations.take_wanted() == [A, B]
    assert planned(scheduler) == []
    assert scheduler.preparations.take_wanted() == []
    assert scheduler.num_waiting == 3
    assert scheduler.prepared(b"a") == []
    assert planned(scheduler) == [0, 3]
    scheduler.prepared(b"b")
    assert planned(scheduler) == [2]
    submit(scheduler, 4, A)
    assert planned(scheduler) == [4]
    assert scheduler.preparations.take_wanted() == []


def test_what_cannot_be_prepared_fails_those_that_need_it() -> None:
    scheduler = core()
    submit(scheduler, 0, A)
    submit(scheduler, 1, B)
    planned(scheduler)
    (finished,) = scheduler.prepared(b"a", "no such grammar")
    assert finished.sequence.request.key == 0
    assert finished.failure is not None
    assert (finished.failure.kind, finished.failure.message) == (ErrorKind.INVALID_ARGUMENT, "no such grammar")
    scheduler.prepared(b"b")
    assert planned(scheduler) == [1]
    # It is not known as ready, so the next one asks again.
    submit(scheduler, 2, A)
    assert planned(scheduler) == []
    assert A in scheduler.preparations.take_wanted()


def test_a_crowd_that_waits_for_one_preparation_lets_others_pass_in_time() -> None:
    scheduler = core()
    for key in range(150):
        submit(scheduler, key, A)
    submit(scheduler, 150)
    assert [planned(scheduler) for _ in range(3)] == [[], [], [150]]
    scheduler.prepared(b"a")
    assert planned(scheduler) == [0, 1, 2, 3, 4, 5, 6]


def test_what_an_arrival_needs_is_asked_for_before_the_next_step() -> None:
    """That step may be a while away, as it leaves when those in flight nearly end."""
    scheduler = core()
    submit(scheduler, 0)
    plan = scheduler.schedule()
    assert plan is not None
    submit(scheduler, 1, A)
    submit(scheduler, 2, A)
    scheduler.check_integrity()
    assert scheduler.preparations.take_wanted() == [A]
    scheduler.prepared(b"a")
    wire_ids = plan.sampling_wire_ids
    scheduler.apply(StepResult(plan.step_id, wire_ids, array("I", [9] * len(wire_ids))))
    assert planned(scheduler) == [1, 2]


def test_what_has_no_slot_yet_is_not_asked_for_early() -> None:
    """The worker would have forgotten it by its turn if many more came."""
    scheduler = core()
    for key in range(8):
        submit(scheduler, key)
    submit(scheduler, 8, A)
    assert scheduler.preparations.take_wanted() == []


def test_a_suspect_and_what_it_needs_are_kept_apart_from_all_others() -> None:
    scheduler = core()
    submit(scheduler, 1, B)
    fields = {"was_accepted": True, "suspicion": SUSPECT, "needs": A}
    scheduler.submit(SequenceRequest(0, array("I", [1, 2, 3]), Generate(1), **fields))  # type: ignore[arg-type]
    assert scheduler.preparations.take_wanted() == [B]
    assert planned(scheduler) == [], "what others need is prepared first"
    submit(scheduler, 2, C)
    assert scheduler.preparations.take_wanted() == []
    scheduler.prepared(b"b")
    assert planned(scheduler) == []
    assert scheduler.preparations.take_wanted() == [A]
    scheduler.prepared(b"a")
    plan = scheduler.schedule()
    assert plan is not None
    assert [new.sequence.request.key for new in plan.new_sequences] == [0]
    scheduler.apply(StepResult(plan.step_id, plan.sampling_wire_ids, array("I", [9])))
    assert planned(scheduler) == [1]
    assert scheduler.preparations.take_wanted() == [C]


def test_a_worker_that_was_asked_for_nothing_did_not_die_of_it() -> None:
    """A sequence that arrives while the worker is away, which is refused a few times when it comes back."""
    scheduler = core()
    submit(scheduler, 0, A)
    for _ in range(5):
        assert scheduler.reset(is_exit=True) == []
    assert scheduler.suspects() == []
    assert planned(scheduler) == []
    assert scheduler.preparations.take_wanted() == [A]


def test_another_worker_is_asked_again() -> None:
    scheduler = core()
    submit(scheduler, 0, A)
    submit(scheduler, 1, B)
    planned(scheduler)
    scheduler.prepared(b"a")
    assert planned(scheduler) == [0]
    scheduler.preparations.take_wanted()
    scheduler.reset()
    assert planned(scheduler) == []
    assert scheduler.preparations.take_wanted() == [A, B]
    scheduler.prepared(b"a")
    scheduler.prepared(b"b")
    assert planned(scheduler) == [0, 1]


@pytest.mark.parametrize(
    ("order", "expected_deaths"), [((None, A, A, B), 4), ((A, B, None, A), 4), ((B, A, None, None), 6)]
)
def test_what_workers_die_of_preparing_is_found_and_costs_nobody_else_anything(
    order: tuple[Preparation | None, ...], expected_deaths: int
) -> None:
    """Some more die of it where it was not the first that was asked for, or who needs it waits in different places."""
    scheduler = core()
    for key, needs in enumerate(order):
        submit(scheduler, key, needs)
    failed: list[object] = []
    num_deaths = 0
    for _ in range(60):
        plan = scheduler.schedule()
        scheduler.check_integrity()
        wanted = scheduler.preparations.take_wanted()
        if A in wanted:
            num_deaths += 1
            failed += [finished.sequence.request.key for finished in scheduler.reset(is_exit=True)]
            continue
        for preparation in wanted:
            scheduler.prepared(preparation.key)
        if plan is not None:
            wire_ids = plan.sampling_wire_ids
            scheduler.apply(StepResult(plan.step_id, wire_ids, array("I", [9] * len(wire_ids))))
        scheduler.check_integrity()
    assert failed == [key for key, needs in enumerate(order) if needs is A]
    assert num_deaths == expected_deaths
    assert scheduler.num_running == scheduler.num_waiting == 0


def test_one_that_is_aborted_or_drained_meanwhile_is_gone() -> None:
    scheduler = core()
    submit(scheduler, 0, A)
    submit(scheduler, 1, A)
    planned(scheduler)
    assert scheduler.abort(0)
    assert [sequence.request.key for sequence in scheduler.drain()] == [1]
    scheduler.prepared(b"a")
    assert planned(scheduler) == []


def test_an_answer_that_nobody_asked_for_breaks_the_contract() -> None:
    with pytest.raises(ValueError, match="not asked for"):
        core().prepared(b"a")


def test_a_sequence_that_outgrows_what_others_share_goes_on_with_its_own() -> None:
    scheduler = core()
    submit(scheduler, 0, A)
    submit(scheduler, 1, A)
    scheduler.preparations.take_wanted()
    scheduler.prepared(b"a")
    assert planned(scheduler) == [0, 1]
    first, second = scheduler.schedule(), scheduler.schedule()
    assert first is not None
    assert second is not None
    outgrown, other = first.sampling_wire_ids
    outcome = scheduler.apply(StepResult(first.step_id, [other], [8], outgrown=[(outgrown, FULL)]))
    scheduler.check_integrity()
    assert [sequence.request.key for sequence in outcome.outgrown] == [0]
    assert not outcome.finished
    outcome = scheduler.apply(StepResult(second.step_id, [other], [8], outgrown=[(outgrown, FULL)]))
    assert not outcome.outgrown, "it has left already"
    assert planned(scheduler) == [], "the other one goes on"
    (own,) = scheduler.preparations.take_wanted()
    assert (own.source, own.output_token_ids) == (A.source, array("I", [9]))
    assert own != A
    scheduler.prepared(own.key)
    assert planned(scheduler) == [0]
    # Later ones share what was prepared before; if it is interrupted, it needs its own again, with all its output.
    submit(scheduler, 2, A)
    assert planned(scheduler) == [2]
    assert scheduler.reset() == []
    assert planned(scheduler) == []
    assert [one.output_token_ids for one in scheduler.preparations.take_wanted()] == [array("I", [9, 9, 9]), None]
    # The same goes for another group that it moves to.
    group = core()
    for sequence in scheduler.drain():
        group.adopt(sequence)
    assert planned(group) == []
    assert [one.output_token_ids for one in group.preparations.take_wanted()] == [array("I", [9, 9, 9]), None]


def test_a_sequence_fails_if_nothing_can_be_prepared_for_it_alone() -> None:
    scheduler = core()
    submit(scheduler, 0, A)
    scheduler.preparations.take_wanted()
    scheduler.prepared(b"a")
    outgrow(scheduler)
    assert planned(scheduler) == []
    (own,) = scheduler.preparations.take_wanted()
    (finished,) = scheduler.prepared(own.key, "it cannot be read")
    assert finished.failure is not None
    assert finished.failure.message == "it cannot be read"
    scheduler.check_integrity()


def test_a_sequence_fails_if_a_preparation_for_it_alone_has_not_helped() -> None:
    scheduler = core()
    submit(scheduler, 0, A)
    scheduler.preparations.take_wanted()
    scheduler.prepared(b"a")
    for _ in range(2):
        outcome = outgrow(scheduler)
        assert not outcome.finished
        assert planned(scheduler) == []
        (own,) = scheduler.preparations.take_wanted()
        scheduler.prepared(own.key)
        assert planned(scheduler) == [0], "it gets a token each time"
    outgrow(scheduler)
    planned(scheduler)
    scheduler.prepared(scheduler.preparations.take_wanted()[0].key)
    (finished,) = outgrow(scheduler).finished
    assert finished.failure == FULL
    assert scheduler.sequences == []


def test_what_needs_nothing_cannot_outgrow_it() -> None:
    scheduler = core()
    submit(scheduler, 0)
    plan = scheduler.schedule()
    assert plan is not None
    with pytest.raises(ValueError, match="wants a preparation for a sequence that needs none"):
        scheduler.apply(StepResult(plan.step_id, [], [], outgrown=[(plan.sampling_wire_ids[0], FULL)]))


def test_a_worker_that_makes_two_kinds_of_preparations_may_have_died_of_either() -> None:
    """It makes one at a time, but those that are shared go before."""
    own = Preparation(b"a/0/1", A.source, array("I", [9]))
    preparations = Preparations()
    for one in (own, B, C):
        preparations.request(one, lambda _: True)
    assert preparations.being_made == []
    preparations.take_wanted()
    assert preparations.being_made == [B, own]
    preparations.finish(own.key, is_ready=True)
    assert preparations.being_made == [B]
    preparations.use_up(own)
    assert not preparations.is_ready(own)


def test_a_long_output_is_not_read_into_what_others_share() -> None:
    scheduler = Scheduler[SequenceRequest](
        CoreConfig(num_blocks=1024, block_size=4, max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=4096)
    )
    for key, length in enumerate((1024, 1025)):
        output = array("I", [9] * length)
        scheduler.submit(SequenceRequest(key, array("I", [1]), Generate(2000), output, needs=A))
    wanted = scheduler.preparations.take_wanted()
    assert [one.output_token_ids for one in wanted] == [None, array("I", [9] * 1025)]
    assert wanted[0] == A


def test_single_preparations_do_not_keep_shared_ones_waiting() -> None:
    preparations = Preparations()
    single = [Preparation(b"a/%d/1" % index, A.source, array("I", [9])) for index in range(MAX_PENDING_SINGLE + 2)]
    for one in (*single, B):
        preparations.request(one, lambda _: True)
    assert preparations.take_wanted() == [*single[:-2], B]
    preparations.finish(B.key, is_ready=True)
    preparations.fill_places(lambda _: True)
    assert preparations.take_wanted() == []
    preparations.finish(single[0].key, is_ready=True)
    preparations.fill_places(lambda _: True)
    assert preparations.take_wanted() == [single[-2]]


def test_what_is_pending_and_what_is_remembered_is_bounded() -> None:
    preparations = Preparations()
    many = [Preparation(bytes([index // 256, index % 256])) for index in range(MAX_READY + 1)]
    for one in many[: MAX_PENDING + 2]:
        preparations.request(one, lambda _: True)
    assert preparations.take_wanted() == many[:MAX_PENDING]
    preparations.finish(many[0].key, is_ready=True)
    preparations.fill_places(lambda one: one != many[MAX_PENDING])
    assert preparations.take_wanted() == [many[MAX_PENDING + 1]], "nobody needs the one before it any more"
    assert preparations.forget_worker() == [*many[1:MAX_PENDING], many[MAX_PENDING + 1]]
    for one in many:
        preparations.request(one, lambda _: True)
        preparations.take_wanted()
        preparations.finish(one.key, is_ready=True)
    assert not preparations.is_ready(many[0])
    assert all(preparations.is_ready(one) for one in many[1:])


def test_a_full_queue_of_preparations_keeps_nobody_waiting_who_needs_none() -> None:
    scheduler = core()
    needs = [Preparation(b"%d" % key) for key in range(MAX_PENDING + 3)]
    for key, one in enumerate(needs):
        submit(scheduler, key, one)
    submit(scheduler, 100)
    while not (keys := planned(scheduler)):
        assert scheduler.is_cut_short
    assert keys == [100]
    assert scheduler.preparations.take_wanted() == needs[:MAX_PENDING]
    scheduler.abort(MAX_PENDING)
    scheduler.prepared(needs[0].key)
    assert scheduler.preparations.take_wanted() == [needs[MAX_PENDING + 1]], "the next in line that is still needed"
    assert planned(scheduler) == [0]
    scheduler.reset()
    for _ in range(2):
        planned(scheduler)
    wanted = scheduler.preparations.take_wanted()
    assert wanted == [one for one in needs if one != needs[MAX_PENDING]][:MAX_PENDING]
    for one in wanted:
        scheduler.prepared(one.key)
    assert scheduler.preparations.take_wanted() == needs[MAX_PENDING + 1 :]


def test_preparations_that_nobody_waits_for_any_more_are_forgotten() -> None:
    """However many requests are sent and aborted while the worker is at work."""
    preparations = Preparations()
    for index in range(10 * MAX_PENDING):
        preparations.request(Preparation(b"%d" % index), lambda _: False)
    assert len(preparations.forget_worker()) <= 2 * MAX_PENDING + 1
