"""A scheduler that takes no message is given up, and dialled again."""

from __future__ import annotations

import asyncio

import pytest

from services.router.dispatch import scheduler_connection
from tests.fakes.waiting import HANG_S, until
from tests.integration.router.conftest import GREETING, StartRouter, fake_scheduler

# Together more than the flow control of a stream lets through to a peer that does not read.
NUM_REQUESTS = 8
PROMPT = [65] * 250_000


async def test_requests_go_on_when_a_scheduler_takes_messages_again(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_connection, "WRITE_STALL_SECONDS", 0.1)
    scheduler = fake_scheduler(max_model_len=2 * len(PROMPT))
    scheduler.deaf = True
    api = await start_router(scheduler)
    asked = [asyncio.create_task(api.complete(prompt=PROMPT, max_tokens=100)) for _ in range(NUM_REQUESTS)]
    await until(lambda: scheduler.num_connects >= 4)
    monkeypatch.setattr(scheduler_connection, "WRITE_STALL_SECONDS", HANG_S)
    scheduler.deaf = False
    await scheduler.break_streams()  # of which the last may still be deaf
    for reply in await asyncio.gather(*asked):
        assert reply.json["choices"][0]["text"] == GREETING
