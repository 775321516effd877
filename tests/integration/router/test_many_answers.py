"""A request of more answers than the queue has places: taken where the batch has room for the others, and called a bad
request where it can never fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from services.scheduler.config import SchedulerConfig
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.stack import running_router, running_scheduler, talking_worker
from tests.integration.router.conftest import Api

CONFIG = SchedulerConfig(max_num_queued_reqs=4, max_num_seqs=8)
# One of the slots is kept for the first answers of other requests.
MOST = 4 + 7


@pytest.fixture
def fake_worker() -> FakeWorker:
    return talking_worker()


@pytest_asyncio.fixture
async def api(tmp_path: Path, fake_worker: FakeWorker) -> AsyncIterator[Api]:
    worker, scheduler, router = (f"unix:{tmp_path}/{name}" for name in ("w", "s", "r"))
    async with AsyncExitStack() as stack:
        server = await start_fake_worker(fake_worker, worker)
        stack.push_async_callback(server.stop, 0)
        await stack.enter_async_context(running_scheduler(scheduler, worker, config=CONFIG))
        running = await stack.enter_async_context(running_router(router, scheduler))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(router))
        yield Api(router, channel, running)


async def test_an_idle_batch_takes_more_answers_than_may_wait(api: Api) -> None:
    body = {"model": "fake", "prompt": [5, 6], "n": MOST, "max_tokens": 3}
    reply = await api.post("CreateCompletion", body)
    assert len(reply.json["choices"]) == MOST


@pytest.mark.parametrize(
    ("prompt", "n", "param"), [([5, 6], MOST + 1, "n"), ([[index] for index in range(1, MOST + 2)], 1, "prompt")]
)
async def test_what_can_never_fit_is_a_bad_request(
    api: Api, fake_worker: FakeWorker, prompt: object, n: int, param: str
) -> None:
    fake_worker.script.gate = asyncio.Semaphore(0)  # no answer ends before all have been sent
    body = {"model": "fake", "prompt": prompt, "n": n, "max_tokens": 100}
    refused = await api.refused("CreateCompletion", body)
    assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.error["param"] == param
    assert f"at most {MOST} per request" in refused.error["message"]
