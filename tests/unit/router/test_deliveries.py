"""Rounds of deliveries: at once after short ones, after a rest where they were long, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from services.router.dispatch.deliveries import Deliveries


def waiters(deliveries: Deliveries, number: int) -> list[asyncio.Future[None]]:
    made = [asyncio.get_running_loop().create_future() for _ in range(number)]
    for waiter in made:
        deliveries.wake(waiter)
    return made


async def test_everybody_who_waits_is_woken_in_one_round() -> None:
    made = waiters(Deliveries(), 3)
    assert not any(waiter.done() for waiter in made)
    await asyncio.sleep(0)
    assert all(waiter.done() for waiter in made)


async def test_one_who_has_left_holds_nobody_up() -> None:
    gone, stays = waiters(Deliveries(), 2)
    gone.cancel()
    await stays


async def test_after_short_rounds_the_next_comes_at_once() -> None:
    deliveries = Deliveries(clock=lambda: 0.0)
    for _ in range(3):
        (waiter,) = waiters(deliveries, 1)
        await asyncio.sleep(0)
        assert waiter.done()
        await asyncio.sleep(0)


async def test_few_messages_are_not_what_took_a_round_long() -> None:
    deliveries = Deliveries(clock=count(0, 3600).__next__)
    for _ in range(3):
        (waiter,) = waiters(deliveries, 1)
        await asyncio.sleep(0)
        assert waiter.done()
        await asyncio.sleep(0)


async def test_after_a_long_round_the_next_comes_after_a_rest_that_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[tuple[float, Callable[[], object]]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda seconds, end: rests.append((seconds, end)))
    # Each round took an hour.
    deliveries = Deliveries(clock=count(0, 3600).__next__)
    await asyncio.gather(*waiters(deliveries, 200))
    (second,) = waiters(deliveries, 1)
    for _ in range(3):
        await asyncio.sleep(0)
        assert not second.done()
    (third,) = waiters(deliveries, 1)
    ((seconds, end_rest),) = rests
    assert 0 < seconds < 3600
    end_rest()
    # A request that waits since the rest began is in the same round.
    assert second.done()
    assert third.done()
