"""Garbage on the scheduler's port costs one line in the log and disturbs nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.scheduler.v1 import scheduler_pb2
from services.scheduler import servicer as servicer_module
from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, Script
from tests.fakes.garbage import NO_MESSAGE, check_log, log_once, status_of, throw_at
from tests.integration.scheduler.driver import running

SERVICE = "/quire.scheduler.v1.SchedulerService"
METHODS = [f"{SERVICE}/{name}" for name in ("Connect", "GetTokenizer", "GetStats", "ResetPrefixCache")]
HELLO = scheduler_pb2.ConnectRequest(hello=scheduler_pb2.RouterHello(router_id="odd")).SerializeToString()


@pytest.fixture(autouse=True)
def _log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log_once(monkeypatch)


async def test_garbage_is_refused_beside_a_stream_that_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    gate = asyncio.Semaphore(3)
    async with running(tmp_path, FakeWorker(script=Script(gate=gate))) as stack:
        router = await stack.router()
        await router.submit(1, [7, 8], 20)
        while not router.outputs[1]:
            await router.read()
        await throw_at(f"unix:{tmp_path}/s", METHODS)
        for messages, status, problem in (
            ((b"",), grpc.StatusCode.INVALID_ARGUMENT, "must be a hello"),
            ((HELLO, NO_MESSAGE), grpc.StatusCode.INVALID_ARGUMENT, "not a message of this method"),
            ((HELLO, HELLO), grpc.StatusCode.INVALID_ARGUMENT, "unexpected message: hello"),
        ):
            code, details = await status_of(f"unix:{tmp_path}/s", f"{SERVICE}/Connect", *messages)
            assert (code, problem in details) == (status, True), details
        for _ in range(40):
            gate.release()
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output([7, 8], 20)
    check_log(caplog, capfd)


async def test_a_hello_that_does_not_come_is_not_called_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The network may have lost it."""
    monkeypatch.setattr(servicer_module, "HELLO_TIMEOUT_S", 0.1)
    async with running(tmp_path, FakeWorker()), grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
        call: Any = channel.stream_stream(f"{SERVICE}/Connect")()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call.details() == "no hello arrived within 0.1 s"
    assert "hello" not in caplog.text
