"""Workers that exit: only a sequence that they die of alone fails, and only after the second time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import grpc
import pytest

from quire.worker.v1 import worker_pb2
from tests.fakes.fake_model import FakeModel, expected_output
from tests.fakes.fake_worker import FakeWorker, Script
from tests.fakes.waiting import until
from tests.integration.scheduler.driver import Router, Stack, running

NUM_SEQUENCES = 12
MAX_TOKENS = 60
DEADLY = 99


def roomy() -> FakeModel:
    return FakeModel(num_blocks=1024, max_num_seqs=16, max_num_batched_tokens=64)


async def submit(router: Router, number: int) -> None:
    await router.submit(number, [number % 50 + 3, 7], MAX_TOKENS)


def check(router: Router, number: int) -> None:
    assert not router.finished[number].HasField("error"), router.finished[number].error.message
    assert router.outputs[number] == expected_output([number % 50 + 3, 7], MAX_TOKENS)


async def kill_at_random(stack: Stack, workers: list[FakeWorker], num_kills: int, seed: int) -> None:
    """Kills workers at random steps, a few at a time, while sequences run."""
    chance = random.Random(seed)
    router = await stack.router()
    for group in stack.fleet.groups:
        await group.ready.wait()
    num_submitted = num_killed = 0
    while num_killed < num_kills:
        victims = chance.sample(range(len(workers)), chance.randint(1, len(workers)))
        for index in victims:
            core = stack.fleet.groups[index].core
            assert core is not None
            workers[index].script.die_at_step = core._next_step_id + chance.randint(1, MAX_TOKENS // 2)
        first, num_submitted = num_submitted, num_submitted + NUM_SEQUENCES
        for number in range(first, num_submitted):
            await submit(router, number)
        await router.read_until_finished(*range(first, num_submitted))
        num_killed += sum(workers[index].script.die_at_step is None for index in victims)
    for number in range(num_submitted):
        check(router, number)


@pytest.mark.parametrize(("num_workers", "num_kills"), [(1, 50), pytest.param(3, 250, marks=pytest.mark.thorough)])
async def test_no_innocent_sequence_fails_however_many_workers_are_killed(
    tmp_path: Path, num_workers: int, num_kills: int
) -> None:
    workers = [FakeWorker(make_model=roomy) for _ in range(num_workers)]
    async with running(tmp_path, *workers) as stack:
        await kill_at_random(stack, workers, num_kills=num_kills, seed=num_workers)


@pytest.mark.parametrize("num_workers", [1, 3])
async def test_a_sequence_that_always_kills_fails_after_two_exits_alone_and_all_others_are_answered(
    tmp_path: Path, num_workers: int
) -> None:
    workers = [FakeWorker(make_model=roomy, script=Script(deadly_token_id=DEADLY)) for _ in range(num_workers)]
    async with running(tmp_path, *workers) as stack:
        router = await stack.router()
        for group in stack.fleet.groups:
            await group.ready.wait()
        for number in range(NUM_SEQUENCES):
            await submit(router, number)
        await router.submit(1000, [DEADLY, 7], 20)
        await router.read_until_finished(1000)
        assert router.finished[1000].error.code == 13
        assert "exited twice while it worked on this request alone" in router.finished[1000].error.message
        num_exits = sum(worker.boot_id - 1 for worker in workers)
        assert 2 <= num_exits <= 4, "at most twice beside others, and twice alone"
        for number in range(NUM_SEQUENCES, 2 * NUM_SEQUENCES):
            await submit(router, number)
        await router.read_until_finished(*range(2 * NUM_SEQUENCES))
        for number in range(2 * NUM_SEQUENCES):
            check(router, number)
        assert sum(worker.boot_id - 1 for worker in workers) == num_exits


async def test_a_sequence_alone_on_its_worker_fails_with_the_second_exit(tmp_path: Path) -> None:
    worker = FakeWorker(make_model=roomy, script=Script(deadly_token_id=DEADLY))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [DEADLY, 7], 20)
        await router.read_until_finished(1)
        assert router.finished[1].error.code == 13
        assert worker.boot_id == 3


async def test_a_connection_that_is_cut_is_no_sequences_fault(tmp_path: Path) -> None:
    """The worker's process is still there when it is claimed again."""
    worker = FakeWorker(make_model=roomy, script=Script(num_cuts=6))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await submit(router, 1)
        await router.read_until_finished(1)
        check(router, 1)
        assert worker.epoch == 7


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_an_exit_and_a_cut_connection_are_not_two_exits(tmp_path: Path, num_workers: int) -> None:
    """The first worker exits while the sequence runs alone; then the connection to the next one is cut."""
    workers = [FakeWorker(make_model=roomy) for _ in range(num_workers)]
    workers[0].script.die_at_step = 1
    workers[-1].script.num_cuts = 1
    async with running(tmp_path, *workers) as stack:
        router = await stack.router()
        for group in stack.fleet.groups:
            await group.ready.wait()
        await submit(router, 1)
        await router.read_until_finished(1)
        check(router, 1)
        assert workers[0].boot_id == 2
        assert not workers[-1].script.num_cuts


@pytest.mark.parametrize(("boot_id", "num_losses"), [(1, 0), (2, 3)])
async def test_a_worker_that_another_scheduler_holds_tells_whether_it_has_exited(
    tmp_path: Path, boot_id: int, num_losses: int
) -> None:
    worker = FakeWorker(make_model=roomy, script=Script(num_cuts=1))
    release = worker.ownership.release

    def pass_on() -> None:
        release()
        worker.ownership._owner = "another"
        worker.boot_id = boot_id

    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        worker.ownership.release = pass_on  # type: ignore[method-assign]
        await submit(router, 1)
        while len(router.losses) < 2:
            await router.read()
        assert [(loss.num_losses, loss.is_unproved) for loss in router.losses] == [(3, True), (num_losses, False)]
        worker.ownership.release = release  # type: ignore[method-assign]
        release()
        await router.read_until_finished(1)
        check(router, 1)


@pytest.mark.parametrize("has_core", [True, False])
async def test_a_held_sequence_goes_on_if_its_last_exit_was_none(tmp_path: Path, has_core: bool) -> None:
    """`has_core`: whether the scheduler still has a place for it. Otherwise, its router finds another one."""
    worker = FakeWorker(make_model=roomy, script=Script(die_at_step=1, num_cuts=1))
    may_claim, take = asyncio.Event(), worker.ownership.take

    async def take_third_time_later(claim: worker_pb2.Claim) -> None:
        if worker.epoch == 2:
            await may_claim.wait()
        await take(claim)

    worker.ownership.take = take_third_time_later  # type: ignore[method-assign]
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        (group,) = stack.fleet.groups
        await submit(router, 1)
        await until(lambda: bool(stack.fleet.accusations._held))
        if not has_core:
            group.core = None
        group.settle(worker.boot_id)
        may_claim.set()
        await router.read_until_finished(1)
        assert [loss.is_held for loss in router.losses][-2:] == [True, False]
        if has_core:
            check(router, 1)
        else:
            assert router.finished[1].error.code == grpc.StatusCode.UNAVAILABLE.value[0]


async def test_a_sequence_that_waits_for_the_proof_of_an_exit_can_be_aborted(tmp_path: Path) -> None:
    worker = FakeWorker(make_model=roomy, script=Script(deadly_token_id=DEADLY))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [DEADLY, 7], 20)
        (group,) = stack.fleet.groups
        held = stack.fleet.accusations._held
        await until(lambda: bool(held))
        assert group.num_unfinished == 0
        await router.abort(1)
        await until(lambda: not held)
        await submit(router, 2)
        await router.read_until_finished(2)
        check(router, 2)
        assert 1 not in router.finished
