"""A worker that takes no message is given up, and claimed again; the scheduler lives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.scheduler.core.request import Preparation
from services.scheduler.worker_groups import worker_link
from tests.fakes.fake_worker import FakeWorker, Script
from tests.fakes.waiting import HANG_S, until
from tests.integration.scheduler.driver import running

# More than the flow control of a stream lets through to a peer that does not read.
LARGE_GRAMMAR = "x" * 1_000_000


async def test_a_worker_that_takes_no_message_is_claimed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "STALLED_PEER_S", HANG_S)
    worker = FakeWorker(script=Script(preparation_gate=asyncio.Event()))
    async with running(tmp_path, worker) as stack:
        (group,) = stack.fleet.groups
        for epoch in (1, 2):
            await until(lambda: worker.epoch == epoch and group.ready.is_set())  # noqa: B023 - called at once
            assert group.steps.link is not None
            for index in range(20):
                group.steps.link.prepare(Preparation(bytes([index]), LARGE_GRAMMAR))
            # Little time for these messages alone, not for those of the next claim.
            monkeypatch.setattr(worker_link, "STALLED_PEER_S", 0.1)
            await until(lambda: not group.ready.is_set())
            monkeypatch.setattr(worker_link, "STALLED_PEER_S", HANG_S)
            await until(lambda: worker.epoch > epoch)  # noqa: B023
        assert worker.script.preparation_gate is not None
        worker.script.preparation_gate.set()
        router = await stack.router()
        await router.submit(1, [7, 8], 20)
        await router.read_until_finished(1)


async def test_a_call_that_ends_on_this_side_does_not_end_the_worker_group(tmp_path: Path) -> None:
    """gRPC cancels whoever reads a call, as if that task had been, when a write of the same call is given up."""
    worker = FakeWorker()
    async with running(tmp_path, worker) as stack:
        (group,) = stack.fleet.groups
        router = await stack.router()
        for epoch in range(1, 4):
            await until(lambda: worker.epoch == epoch and group.ready.is_set())  # noqa: B023
            await router.submit(epoch, [7, 8], 20)
            await router.read_until_finished(epoch)
            assert group.steps.link is not None
            group.steps.link._stream.cancel()
            await until(lambda: worker.epoch > epoch)  # noqa: B023
