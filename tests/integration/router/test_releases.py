"""A part whose release cannot work with another one is refused in a sentence with both releases, on every hop."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest

from quire.inference.v1 import release_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from quire.worker.v1 import worker_pb2
from shared.version import version
from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.stack import running_scheduler, talking_worker
from tests.fakes.waiting import until
from tests.integration.router.conftest import StartRouter, fake_scheduler

FUTURE = release_pb2.Release(version="9.9.9", protocol=99, oldest_protocol=98)


def sentence(peer: str) -> str:
    return f"{peer} runs Quire 9.9.9 (protocols 98 to 99), which does not work with Quire {version()} here"


async def test_a_router_refuses_a_scheduler_of_a_future_release(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = fake_scheduler()
    scheduler.release = FUTURE
    with caplog.at_level(logging.WARNING):
        api = await start_router(scheduler, wait=False)
        await until(lambda: sentence("the scheduler") in caplog.text)
        await until(lambda: scheduler.num_connects > 2)
    assert caplog.text.count(sentence("the scheduler")) == 1
    assert not api.router.placement.is_ready


async def test_a_scheduler_refuses_a_router_of_a_future_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix:{tmp_path}/scheduler"
    async with running_scheduler(address), grpc.aio.insecure_channel(address) as channel:
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        call = stub.Connect()
        hello = scheduler_pb2.RouterHello(router_id="new", release=FUTURE)
        await call.write(scheduler_pb2.ConnectRequest(hello=hello))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert sentence("the router") in (caught.value.details() or "")
    assert f"refused router new: {sentence('the router')}" in caplog.text


class FutureWorker(FakeWorker):
    def hello(self, model: FakeModel, epoch: int) -> worker_pb2.Hello:  # type: ignore[override]
        hello = super().hello(model, epoch)
        hello.release.CopyFrom(FUTURE)
        return hello


async def test_a_scheduler_waits_for_another_worker_than_one_of_a_future_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new, usable = f"unix:{tmp_path}/new", f"unix:{tmp_path}/usable"
    servers = [await start_fake_worker(FutureWorker(), new), await start_fake_worker(talking_worker(), usable)]
    async with running_scheduler(f"unix:{tmp_path}/scheduler", new, usable) as scheduler:
        await until(lambda: any(group.ready.is_set() for group in scheduler.groups))
        await until(lambda: sentence("the worker") in caplog.text)
        assert [group.address for group in scheduler.groups if group.ready.is_set()] == [usable]
    for server in servers:
        await server.stop(0)
