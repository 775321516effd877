"""Garbage on the worker's port costs one line in the log and disturbs nobody."""

from __future__ import annotations

import grpc
import pytest

from quire.worker.v1 import worker_pb2
from services.worker.service import servicer
from services.worker.startup.load import LoadedWorker
from tests.fakes.garbage import NO_MESSAGE, check_log, log_once, status_of, throw_at
from tests.integration.worker.client import Stream, new_sequence, rows, values
from tests.integration.worker.test_step_stream import PROMPT, greedy

RUN = "/quire.worker.v1.WorkerService/Run"
CLAIM = worker_pb2.RunRequest(claim=worker_pb2.Claim(scheduler_id="odd")).SerializeToString()


@pytest.fixture(autouse=True)
def _log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log_once(monkeypatch)


async def test_garbage_is_refused_beside_a_stream_that_goes_on(
    address: str,
    channel: grpc.aio.Channel,
    engine: LoadedWorker,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    expected = greedy(engine, PROMPT, 1)
    stream = Stream(channel)
    await stream.claim()
    await throw_at(address, [RUN, "/quire.worker.v1.WorkerService/GetTokenizer"])
    code, details = await status_of(address, RUN, b"")
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream must be a claim")
    result = await stream.step(new_sequences=[new_sequence(1, 0, PROMPT, [0])], rows=rows((1, 0, len(PROMPT), 0)))
    assert values(result.token_ids) == expected
    check_log(caplog, capfd)


async def test_a_claim_that_does_not_come_is_not_called_garbage(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The network may have lost it."""
    monkeypatch.setattr(servicer, "CLAIM_TIMEOUT_S", 0.05)
    stream = Stream(channel)
    with pytest.raises(grpc.aio.AioRpcError, match=r"no claim arrived within 0\.05 s") as end:
        await stream.result()
    assert end.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caplog.text == ""


async def test_garbage_of_an_owner_ends_its_epoch(
    address: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    code, details = await status_of(address, RUN, CLAIM, NO_MESSAGE)
    assert (code, "not a message of this method" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    check_log(caplog, capfd)
