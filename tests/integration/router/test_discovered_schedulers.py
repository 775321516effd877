"""Schedulers that discovery adds and removes while the router runs."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fakes.changing_source import ChangingSource
from tests.fakes.waiting import until
from tests.integration.router.conftest import GREETING, Api, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import FakeScheduler
from tests.integration.router.test_recovery import pausing, read_rest, read_until, stream, text_in


def addresses(api: Api) -> list[str]:
    return [connection.address for connection in api.router.placement.connections]


async def ready(api: Api, scheduler: FakeScheduler) -> None:
    """Waits until the router's stream to the scheduler is connected."""
    await until(lambda: any(c.address == scheduler.address and c.is_ready for c in api.router.placement.connections))


async def test_a_scheduler_that_is_discovered_later_is_used(start_router: StartRouter) -> None:
    first, second = fake_scheduler(), fake_scheduler()
    source = ChangingSource(await first.start())
    api = await start_router(first, source=source)
    await second.start()
    since = time.monotonic()
    source.set(first.address, second.address)
    await ready(api, second)
    await first.stop()
    assert text_in(await read_rest(await stream(api))) == GREETING
    print(f"from discovery to the first answer: {time.monotonic() - since:.3f} s")
    assert len(second.submits) == 1
    await second.stop()


async def test_a_request_that_waits_resumes_when_the_first_scheduler_is_discovered(start_router: StartRouter) -> None:
    scheduler, source = fake_scheduler(), ChangingSource()
    api = await start_router(scheduler, source=source, wait=False, scheduler_wait=300.0)
    call = asyncio.create_task(api.chat())
    await asyncio.sleep(0)
    source.set(scheduler.address)
    assert (await call).json["choices"][0]["message"]["content"] == GREETING


async def test_parked_streams_resume_at_a_scheduler_that_is_discovered_later(start_router: StartRouter) -> None:
    first, second = fake_scheduler(pausing(4, asyncio.Event())), fake_scheduler()
    source = ChangingSource(await first.start())
    api = await start_router(first, source=source, scheduler_wait=300.0)
    call = await stream(api)
    messages = await read_until(call, 1)
    source.set()
    await first.stop()
    await until(lambda: api.router.placement.num_parked == 1)
    assert addresses(api) == [], "the only scheduler is forgotten"
    await second.start()
    source.set(second.address)
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    await second.stop()


@pytest.mark.parametrize("is_stale", [False, True])
async def test_a_missing_scheduler_is_used_as_long_as_its_stream_lives(
    start_router: StartRouter, is_stale: bool
) -> None:
    resume = asyncio.Event()
    scheduler = fake_scheduler(pausing(4, resume))
    source = ChangingSource(await scheduler.start())
    api = await start_router(scheduler, source=source)
    call = await stream(api)
    messages = await read_until(call, 1)
    source.set(is_stale=is_stale)
    await until(lambda: api.router.placement.roster.num_stale == 1)
    assert (await api.chat(max_tokens=3)).json, "it takes new requests"
    resume.set()
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    await scheduler.stop()
    await until(lambda: addresses(api) == [])
    assert api.router.placement.roster.num_stale == 0


async def test_a_missing_scheduler_without_a_stream_is_forgotten_and_found_again(start_router: StartRouter) -> None:
    first, late = fake_scheduler(), fake_scheduler()
    await late.start()
    await late.stop()
    source = ChangingSource(await first.start(), late.address)
    api = await start_router(first, source=source)
    source.set(first.address)
    await until(lambda: addresses(api) == [first.address])
    await late.start(late.address)
    source.set(first.address, late.address)
    await ready(api, late)
    assert addresses(api) == [first.address, late.address]
    await late.stop()


async def test_a_scheduler_that_restarts_at_its_address_is_used_again(start_router: StartRouter) -> None:
    scheduler, source = fake_scheduler(), ChangingSource()
    source.set(await scheduler.start())
    api = await start_router(scheduler, source=source)
    await scheduler.stop()
    await until(lambda: not api.router.placement.is_ready)
    await scheduler.start(scheduler.address)
    await ready(api, scheduler)
    assert text_in(await read_rest(await stream(api))) == GREETING
