"""A few large bodies are worked on at a time; others wait within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from services.router.errors import ApiError, ErrorKind
from services.router.limits import large_bodies
from services.router.limits.large_bodies import (
    LARGE_BODY_BYTES,
    MAX_AT_A_TIME,
    MAX_HELD_BYTES,
    LargeBodies,
    leave_large_bodies,
)
from tests.fakes.waiting import until

LARGE = LARGE_BODY_BYTES + 1


class Call:
    """A call with a body, in a task of its own as grpc's are."""

    def __init__(self, bodies: LargeBodies, num_bytes: int = LARGE) -> None:
        self.has_entered = False
        self.end = asyncio.Event()
        self._bodies, self._num_bytes = bodies, num_bytes
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._bodies.enter(self._num_bytes)
        self.has_entered = True
        await self.end.wait()
        leave_large_bodies()
        leave_large_bodies()


def entered(calls: list[Call], count: int) -> Callable[[], bool]:
    return lambda: sum(call.has_entered for call in calls) == count


async def test_further_ones_wait_until_others_leave() -> None:
    bodies = LargeBodies()
    calls = [Call(bodies) for _ in range(MAX_AT_A_TIME + 2)]
    await until(entered(calls, MAX_AT_A_TIME))
    small = Call(bodies, LARGE_BODY_BYTES)
    await until(lambda: small.has_entered)
    assert entered(calls, MAX_AT_A_TIME)()
    calls[0].end.set()
    await until(entered(calls, MAX_AT_A_TIME + 1))
    # A client that leaves while it waits frees its bytes, and takes nobody's place.
    waiting = next(call for call in calls if not call.has_entered)
    waiting.task.cancel()
    await asyncio.gather(waiting.task, return_exceptions=True)
    for call in (*calls, small):
        call.end.set()
    await asyncio.gather(*(call.task for call in (*calls, small)), return_exceptions=True)
    assert bodies.num_bytes == 0
    again = [Call(bodies) for _ in range(MAX_AT_A_TIME)]
    await until(entered(again, MAX_AT_A_TIME))
    for call in again:
        call.end.set()
        await call.task


async def test_the_bytes_that_wait_are_bounded() -> None:
    bodies = LargeBodies()
    calls = [Call(bodies, MAX_HELD_BYTES // 8) for _ in range(8)]
    await until(entered(calls, MAX_AT_A_TIME))
    with pytest.raises(ApiError) as caught:
        await bodies.enter(LARGE)
    assert caught.value.kind is ErrorKind.OVERLOADED
    assert caught.value.retry_after is not None
    for call in calls:
        call.end.set()
    await asyncio.gather(*(call.task for call in calls))
    assert bodies.num_bytes == 0


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "MAX_WAIT_SECONDS", 0.01)
    bodies = LargeBodies()
    calls = [Call(bodies) for _ in range(MAX_AT_A_TIME)]
    await until(entered(calls, MAX_AT_A_TIME))
    with pytest.raises(ApiError) as caught:
        await bodies.enter(LARGE)
    assert caught.value.kind is ErrorKind.OVERLOADED
    assert bodies.num_bytes == MAX_AT_A_TIME * LARGE
    for call in calls:
        call.end.set()
    await asyncio.gather(*(call.task for call in calls))


async def test_a_call_takes_one_place() -> None:
    bodies = LargeBodies()

    async def call() -> None:
        for _ in range(MAX_AT_A_TIME + 1):
            await bodies.enter(LARGE)
        leave_large_bodies()
        # Another method that answers the same call.
        await bodies.enter(LARGE)
        assert bodies.num_bytes == LARGE
        leave_large_bodies()

    await asyncio.create_task(call())
    assert bodies.num_bytes == 0
