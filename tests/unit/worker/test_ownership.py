"""The lock of a worker."""

from __future__ import annotations

import asyncio

import pytest

from quire.worker.v1 import worker_pb2
from services.worker.service.ownership import ANSWER_TIMEOUT_S, ClaimRefusedError, Ownership
from tests.fakes.loop_clock import LoopClock


def claim(name: str, num_groups: int | None = 0, *, asks: bool = True) -> worker_pb2.Claim:
    return worker_pb2.Claim(scheduler_id=name, num_groups=num_groups, asks_owner=asks)


async def owned(told: list[worker_pb2.RunResponse] | None) -> Ownership:
    """A worker that scheduler a owns. `told`: collects the messages to a; None if a understands none."""
    ownership = Ownership()
    await ownership.take(claim("a"))
    if told is not None:
        ownership.attach(told.append)
    return ownership


async def asking(ownership: Ownership, name: str = "b") -> asyncio.Task[None]:
    task = asyncio.create_task(ownership.take(claim(name, 2)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_the_owner_is_told_who_asks() -> None:
    told: list[worker_pb2.RunResponse] = []
    ownership = await owned(told)
    task = await asking(ownership)
    assert not task.done()
    assert told == [worker_pb2.RunResponse(contender=worker_pb2.Contender(scheduler_id="b", num_groups=2))]
    ownership.keep()
    with pytest.raises(ClaimRefusedError, match="held by a"):
        await task
    assert ownership.owner == "a"


async def test_a_worker_that_is_given_away_goes_to_the_one_that_asked() -> None:
    ownership = await owned([])
    task = await asking(ownership)
    ownership.leave()
    await asyncio.sleep(0)
    assert not task.done(), "the owner's steps still run"
    ownership.release()
    assert ownership.owner == "b", "no third scheduler can come in between"
    await task


async def test_steps_that_take_long_to_end_do_not_cost_the_contender_the_worker() -> None:
    clock = LoopClock()
    ownership = await owned([])
    task = await asking(ownership)
    ownership.leave()
    await clock.pass_by(10 * ANSWER_TIMEOUT_S)
    assert not task.done()
    ownership.release()
    await task


async def test_an_owner_that_does_not_answer_keeps_the_worker() -> None:
    clock = LoopClock()
    ownership = await owned([])
    task = await asking(ownership)
    await clock.pass_by(ANSWER_TIMEOUT_S + 0.1)
    with pytest.raises(ClaimRefusedError):
        await task
    ownership.keep()  # too late
    ownership.leave()
    ownership.release()
    assert ownership.owner is None


async def test_a_scheduler_that_does_not_ask_and_an_owner_of_an_older_version_disturb_nobody() -> None:
    told: list[worker_pb2.RunResponse] = []
    for ownership, contender in ((await owned(told), claim("b", asks=False)), (await owned(None), claim("b"))):
        with pytest.raises(ClaimRefusedError):
            await ownership.take(contender)
    assert told == []


async def test_only_one_contender_asks_at_a_time() -> None:
    told: list[worker_pb2.RunResponse] = []
    ownership = await owned(told)
    task = await asking(ownership)
    with pytest.raises(ClaimRefusedError):
        await ownership.take(claim("c"))
    assert len(told) == 1
    ownership.keep()
    await asyncio.gather(task, return_exceptions=True)
    task = await asking(ownership, "c")
    assert len(told) == 2
    task.cancel()


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_contender_that_goes_away_leaves_the_worker_to_others(is_given: bool) -> None:
    ownership = await owned([])
    task = await asking(ownership)
    if is_given:
        ownership.leave()
        ownership.release()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if not is_given:
        assert ownership.owner == "a"
        ownership.leave()
        ownership.release()
    assert ownership.owner is None
    await ownership.take(claim("c"))
    assert ownership.owner == "c"
