"""A scheduler learns late whether a worker has exited, and the sequence has moved to another scheduler by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from tests.fakes.waiting import until
from tests.integration.router.conftest import GREETING, Api, RefusedError, Reply, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler
from tests.integration.router.test_recovery import IDS

NUM_TOKENS = 4
MESSAGE = "A worker exited twice."


@dataclass(slots=True)
class Moved:
    """A request that has moved from one scheduler to another, and that an unproved exit at the first one is held
    against. Neither scheduler sends another token of it before its third attempt."""

    api: Api
    first: FakeScheduler
    other: FakeScheduler
    answer: asyncio.Task[Reply]

    @property
    def is_waiting(self) -> bool:
        return self.api.router.placement.num_parked == 1

    async def tell(self, num_losses: int) -> None:
        """The first scheduler says how the exit turned out."""
        (choice,) = self.first.submits[0].choices
        loss = scheduler_pb2.WorkerLoss(sequence_id=choice.sequence_id, num_losses=num_losses)
        await self.first.send(scheduler_pb2.Frame(worker_losses=[loss]))

    async def blame(self) -> None:
        """The other scheduler has seen a second exit."""
        (choice,) = self.other.submits[0].choices
        finished = scheduler_pb2.Finished(
            sequence_id=choice.sequence_id,
            attempt=choice.attempt,
            reason=sampling_pb2.FINISH_REASON_ERROR,
            error=scheduler_pb2.Error(code=grpc.StatusCode.INTERNAL.value[0], message=MESSAGE, is_blamed=True),
        )
        await self.other.send(scheduler_pb2.Frame(finished=[finished]))

    async def check_failure(self) -> None:
        with pytest.raises(RefusedError) as caught:
            await self.answer
        assert (caught.value.status, caught.value.error["message"]) == (grpc.StatusCode.INTERNAL, MESSAGE)

    async def check_another_try(self) -> None:
        """The second exit counts, and the first one no more."""
        assert (await self.answer).json["choices"][0]["message"]["content"] == GREETING
        (third,) = [*self.first.submits[1:], *self.other.submits[1:]]
        assert [(choice.attempt, choice.num_worker_losses) for choice in third.choices] == [(2, 3)]


def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
    return Answer(IDS, pause_after=None if choice.attempt == 2 else NUM_TOKENS)


async def ask(start_router: StartRouter, *schedulers: FakeScheduler, n: int = 1) -> tuple[Api, asyncio.Task[Reply]]:
    """Returns once the first scheduler has sent the first tokens of all choices."""
    schedulers[0].load.num_ready_groups = 1
    api = await start_router(*schedulers)
    connections = api.router.placement.connections
    await until(lambda: all(connection.load.has_report for connection in connections))
    answer = asyncio.create_task(api.chat(n=n))
    await until(lambda: [len(one.output_token_ids) for one in connections[0].sequences] == [NUM_TOKENS] * n)
    return api, answer


async def move(start_router: StartRouter) -> Moved:
    first, other = fake_scheduler(script), fake_scheduler(script)
    api, answer = await ask(start_router, first, other)
    (choice,) = first.submits[0].choices
    loss = scheduler_pb2.WorkerLoss(sequence_id=choice.sequence_id, num_losses=3, is_unproved=True)
    await first.send(scheduler_pb2.Frame(worker_losses=[loss]))
    first.load.num_ready_groups, other.load.num_ready_groups = 0, 1
    await other.wait_for(lambda: len(other.submits) == 1)
    assert [choice.num_worker_losses for choice in other.submits[0].choices] == [3]
    return Moved(api, first, other, answer)


@pytest.fixture
async def moved(start_router: StartRouter) -> AsyncIterator[Moved]:
    moved = await move(start_router)
    yield moved
    moved.answer.cancel()


@pytest.mark.parametrize("num_losses", [3, 0])
async def test_a_blamed_request_waits_until_the_first_exit_is_proved(moved: Moved, num_losses: int) -> None:
    await moved.blame()
    await until(lambda: moved.is_waiting)
    await moved.tell(num_losses)
    await (moved.check_failure() if num_losses else moved.check_another_try())
    assert not moved.is_waiting


@pytest.mark.parametrize("num_losses", [3, 0])
async def test_a_proof_can_come_before_the_blame(moved: Moved, num_losses: int) -> None:
    (connection, _) = moved.api.router.placement.connections
    await moved.tell(num_losses)
    await until(lambda: not connection.num_unproved)
    await moved.blame()
    await (moved.check_failure() if num_losses else moved.check_another_try())


async def test_an_exit_is_not_held_against_a_request_if_nobody_can_prove_it_any_more(moved: Moved) -> None:
    await moved.blame()
    await until(lambda: moved.is_waiting)
    await moved.first.stop()
    await moved.check_another_try()


async def test_a_proof_is_awaited_if_the_first_scheduler_itself_gave_the_request_back(
    start_router: StartRouter,
) -> None:
    """As after its --worker-timeout, just before the exit counts as proved."""
    scheduler = fake_scheduler(script)
    api, answer = await ask(start_router, scheduler)
    (choice,) = scheduler.submits[0].choices
    loss = scheduler_pb2.WorkerLoss(sequence_id=choice.sequence_id, num_losses=3, is_unproved=True)
    refused = scheduler_pb2.Finished(
        sequence_id=choice.sequence_id,
        reason=sampling_pb2.FINISH_REASON_ERROR,
        error=scheduler_pb2.Error(code=grpc.StatusCode.UNAVAILABLE.value[0], message="the worker was lost"),
    )
    await scheduler.send(scheduler_pb2.Frame(worker_losses=[loss], finished=[refused]))
    await scheduler.wait_for(lambda: len(scheduler.submits) == 2)
    moved = Moved(api, scheduler, scheduler, answer)
    scheduler.submits.append(scheduler.submits.pop(0))  # the second attempt comes first, for `blame`
    await moved.blame()
    await until(lambda: moved.is_waiting)
    loss.is_unproved = False
    await scheduler.send(scheduler_pb2.Frame(worker_losses=[loss]))
    await moved.check_failure()


async def test_a_slow_client_does_not_move_a_sequence_that_its_scheduler_holds(start_router: StartRouter) -> None:
    first = fake_scheduler(script)
    api, answer = await ask(start_router, first, n=2)
    (connection,) = api.router.placement.connections
    held, free = connection.sequences
    loss = scheduler_pb2.WorkerLoss(sequence_id=held.sequence_id, num_losses=3, is_held=True)
    await first.send(scheduler_pb2.Frame(worker_losses=[loss]))
    await until(lambda: held.is_held)
    api.router.placement.on_behind(held.submission)
    assert held.submission.paused == [free]
    answer.cancel()


async def test_two_exits_at_the_other_scheduler_alone_need_no_proof_of_the_first(start_router: StartRouter) -> None:
    """The request has a new token since the first one."""
    moved = await move(start_router)
    (choice,) = moved.other.submits[0].choices
    frame = scheduler_pb2.Frame(
        sequence_ids=choice.sequence_id.to_bytes(4, "little"),
        attempts=choice.attempt.to_bytes(4, "little"),
        first_output_indices=NUM_TOKENS.to_bytes(4, "little"),
        token_offsets=(0).to_bytes(4, "little") + (1).to_bytes(4, "little"),
        token_ids=IDS[NUM_TOKENS].to_bytes(4, "little"),
    )
    await moved.other.send(frame)
    await moved.blame()
    await moved.check_failure()


async def test_a_request_that_waits_for_a_proof_ends_at_its_deadline(start_router: StartRouter) -> None:
    moved = await move(start_router)
    (sequence,) = moved.api.router.placement.connections[1].sequences
    sequence.submission.deadline = asyncio.get_running_loop().time()
    await moved.blame()
    with pytest.raises(RefusedError) as caught:
        await moved.answer
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert moved.api.router.placement.num_parked == 0


async def test_a_client_may_leave_while_its_request_waits_for_a_proof(moved: Moved) -> None:
    await moved.blame()
    await until(lambda: moved.is_waiting)
    moved.answer.cancel()
    await until(lambda: not moved.is_waiting)
    await moved.tell(3)
    await until(lambda: not moved.api.router.placement.connections[0].num_unproved)


async def test_a_sequence_that_its_scheduler_holds_is_not_moved(start_router: StartRouter) -> None:
    first, other = fake_scheduler(script), fake_scheduler(script)
    _, answer = await ask(start_router, first, other, n=2)
    held, free = (choice.sequence_id for choice in first.submits[0].choices)
    loss = scheduler_pb2.WorkerLoss(sequence_id=held, num_losses=3, is_held=True)
    await first.send(scheduler_pb2.Frame(worker_losses=[loss]))
    first.load.num_ready_groups, other.load.num_ready_groups = 0, 1
    await first.wait_for(lambda: first.aborted == [free])
    await other.wait_for(lambda: len(other.submits) == 1)
    assert [choice.choice_index for choice in other.submits[0].choices] == [1]
    # Its last exit was none.
    loss.is_held = False
    await first.send(scheduler_pb2.Frame(worker_losses=[loss]))
    await other.wait_for(lambda: len(other.submits) == 2)
    assert [(choice.choice_index, choice.num_worker_losses) for choice in other.submits[1].choices] == [(0, 3)]
    answer.cancel()
