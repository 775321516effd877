"""Which scheduler owns a worker, and when it loses the worker, over a real gRPC stream to a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from quire.inference.v1 import sampling_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.worker.service import ownership
from services.worker.service import servicer as servicer_module
from services.worker.service.owner_messages import OwnerMessages
from services.worker.service.servicer import WorkerServicer
from services.worker.startup.load import LoadedWorker
from shared.patience import NUM_TICKS
from shared.pulse import FACTOR
from tests.fakes.loop_clock import LoopClock
from tests.fakes.waiting import HANG_S, until
from tests.integration.worker.client import Stream, claimed, new_sequence, rows, u32

PROMPT = [5, 6, 7, 8, 9, 10]
# Schedulers of older releases send a heartbeat every 2 s and do not say so.
OLD_HEARTBEAT_S = 2.0
ADMITTED = new_sequence(1, 0, PROMPT, [1])


async def test_a_second_scheduler_is_refused_until_the_first_has_gone(channel: grpc.aio.Channel) -> None:
    first = await claimed(channel)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await Stream(channel).claim("another")
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "test" in str(refusal.value.details())
    await first.close()
    second = await claimed(channel)
    assert second.hello.boot_id == first.hello.boot_id
    assert second.hello.epoch == first.hello.epoch + 1


async def test_a_scheduler_that_is_refused_learns_which_process_this_is(channel: grpc.aio.Channel) -> None:
    owner = await claimed(channel)
    call = worker_pb2_grpc.WorkerServiceStub(channel).Run()
    await call.write(worker_pb2.RunRequest(claim=worker_pb2.Claim(scheduler_id="another", wants_refused=True)))
    refusal = await call.read()
    assert isinstance(refusal, worker_pb2.RunResponse)
    assert refusal.refused.boot_id == owner.hello.boot_id
    with pytest.raises(grpc.aio.AioRpcError, match="held by test") as ended:
        await call.read()
    assert ended.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await owner.close()


@pytest.fixture(autouse=True)
def _owners_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "ANSWER_TIMEOUT_S", HANG_S)


async def test_an_owner_keeps_the_worker_or_gives_it_away(channel: grpc.aio.Channel) -> None:
    owner = Stream(channel)
    await owner.claim("owner", num_groups=0)
    asking = asyncio.create_task(Stream(channel).claim("contender", num_groups=3, asks_owner=True))
    contender = await owner.contender()
    assert (contender.scheduler_id, contender.num_groups) == ("contender", 3)
    await owner.keep()
    with pytest.raises(grpc.aio.AioRpcError, match="held by owner") as refusal:
        await asking
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    # Steps run as before.
    await owner.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    second = Stream(channel)
    asking = asyncio.create_task(second.claim("contender", num_groups=0, asks_owner=True))
    await owner.contender()
    owner.call.cancel()
    assert (await asking).epoch == owner.hello.epoch + 1
    await second.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    await second.close()


async def test_an_owner_is_told_of_a_contender_that_came_before_its_hello(
    channel: grpc.aio.Channel, servicer: WorkerServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, write = asyncio.Event(), servicer_module._write

    async def held_back(*arguments: Any) -> None:
        await may_write.wait()
        await write(*arguments)

    monkeypatch.setattr(servicer_module, "_write", held_back)
    owner = Stream(channel)
    claiming = asyncio.create_task(owner.claim("owner", num_groups=0))
    await until(lambda: servicer._ownership.owner == "owner")
    asking = asyncio.create_task(Stream(channel).claim("contender", num_groups=3, asks_owner=True))
    await until(lambda: servicer._ownership._answer is not None or asking.done())
    may_write.set()
    await claiming
    assert (await owner.contender()).scheduler_id == "contender"
    await owner.keep()
    with pytest.raises(grpc.aio.AioRpcError, match="held by owner"):
        await asking
    await owner.close()


async def test_a_worker_that_stops_tells_its_owner_and_waits_for_it(
    channel: grpc.aio.Channel, servicer: WorkerServicer
) -> None:
    owner = Stream(channel)
    await owner.claim("owner", num_groups=0)
    draining = asyncio.create_task(servicer.drain())
    assert await owner.is_told_of_drain()
    with pytest.raises(grpc.aio.AioRpcError, match="shutting down") as refusal:
        await Stream(channel).refused()
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
    await owner.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    assert not draining.done()
    await owner.close()
    await draining


async def test_a_worker_that_stops_does_not_wait_for_an_owner_of_an_older_version(
    channel: grpc.aio.Channel, servicer: WorkerServicer
) -> None:
    owner = await claimed(channel)
    await servicer.drain()
    await owner.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))


async def test_a_scheduler_of_another_model_is_refused(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="serves tiny-llama, not another") as refusal:
        await Stream(channel).claim(model="another")
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    stream = Stream(channel)
    await stream.claim(model="tiny-llama")
    await stream.close()


@pytest.mark.parametrize("heartbeat_s", [0.4, 1.0, OLD_HEARTBEAT_S])
async def test_a_scheduler_that_falls_silent_loses_the_worker_and_one_that_sends_heartbeats_keeps_it(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch, heartbeat_s: float
) -> None:
    clock, wait_for_message, waiting = LoopClock(), OwnerMessages.next, asyncio.Event()

    async def told_of(messages: OwnerMessages) -> Any:
        asyncio.get_running_loop().call_soon(waiting.set)  # once the wait has begun
        return await wait_for_message(messages)

    monkeypatch.setattr(OwnerMessages, "next", told_of)
    # A write may still be under way when the clock is moved.
    monkeypatch.setattr(servicer_module, "WRITE_TIMEOUT_S", 1e6)
    limit = FACTOR * heartbeat_s
    first = Stream(channel)
    await first.claim(heartbeat_s=None if heartbeat_s == OLD_HEARTBEAT_S else heartbeat_s)
    for _ in range(4):
        await waiting.wait()
        waiting.clear()
        await clock.pass_by(heartbeat_s)
        await first.call.write(worker_pb2.RunRequest(heartbeat=worker_pb2.Heartbeat()))
    await waiting.wait()
    await first.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    # Its connection stays and answers pings; that alone does not keep the worker.
    for _ in range(NUM_TICKS):
        await clock.pass_by(1.1 * limit / NUM_TICKS)
    second = await claimed(channel)
    assert second.hello.epoch == first.hello.epoch + 1
    with pytest.raises(grpc.aio.AioRpcError, match="neither a plan nor a heartbeat") as end:
        await first.result()
    assert end.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def give_little_time(monkeypatch: pytest.MonkeyPatch, is_hurried: Callable[[worker_pb2.RunResponse], bool]) -> None:
    """A message for which `is_hurried` has to be taken within 0.2 s, any other has as long as it takes."""
    write = servicer_module._write

    async def hurried(context: Any, message: worker_pb2.RunResponse) -> None:
        monkeypatch.setattr(servicer_module, "WRITE_TIMEOUT_S", 0.2 if is_hurried(message) else HANG_S)
        await write(context, message)

    monkeypatch.setattr(servicer_module, "_write", hurried)


async def test_a_scheduler_that_takes_no_results_is_dropped(
    address: str, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_little_time(monkeypatch, lambda message: message.HasField("result"))
    wordy = sampling_pb2.SamplingParams(temperature=0.0, logprobs=20)
    # With gRPC's own way of widening the pipe, it takes megabytes to fill.
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]
    async with grpc.aio.insecure_channel(address, options=narrow) as narrow_channel:
        stalled = await claimed(narrow_channel)

        async def plan_on() -> None:
            """Four new sequences in each plan, so that there is much to say about it."""
            for first in range(0, 1_000_000, 4):
                ids = range(first, first + 4)
                await stalled.plan(
                    released_wire_ids=u32(*range(first - 4, first)) if first else b"",
                    new_sequences=[new_sequence(index, index - first, [5, 6], [index - first], wordy) for index in ids],
                    rows=rows(*[(index, index - first, 2, 0) for index in ids]),
                )

        planning = asyncio.create_task(plan_on())
        # Admitted, although the first still holds its end of the stream.
        following = await claimed(channel)
        assert following.hello.epoch == stalled.hello.epoch + 1
        planning.cancel()


async def test_a_scheduler_that_does_not_take_the_hello_is_dropped(
    address: str, servicer: WorkerServicer, engine: LoadedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_little_time(monkeypatch, lambda message: message.hello.epoch == 1)
    # A Hello that no pipe holds.
    names = (engine.model.names[0], *["x" * 1_000_000] * 16)
    servicer.open(replace(engine, model=replace(engine.model, names=names)))
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]
    wide = [("grpc.max_receive_message_length", -1)]
    async with (
        grpc.aio.insecure_channel(address, options=narrow) as narrow_channel,
        grpc.aio.insecure_channel(address, options=wide) as wide_channel,
    ):
        stalled = Stream(narrow_channel)
        await stalled.call.write(worker_pb2.RunRequest(claim=worker_pb2.Claim(scheduler_id="stalled")))
        await stalled.call.initial_metadata()  # the worker is its own from here on
        async with asyncio.timeout(HANG_S):
            following = await claimed(wide_channel)
        assert following.hello.epoch == 2


async def test_closing_finishes_the_steps_received_and_takes_no_more(
    channel: grpc.aio.Channel, servicer: WorkerServicer
) -> None:
    stream = await claimed(channel)
    await stream.step(new_sequences=[ADMITTED], rows=rows((1, 0, 6, 0)))
    await servicer.close()
    with pytest.raises(grpc.aio.AioRpcError) as end:
        await stream.result()
    assert end.value.code() is grpc.StatusCode.ABORTED
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await Stream(channel).refused()
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_worker_that_was_stopped_itself_does_not_blame_its_owner(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, write, writing = LoopClock(), servicer_module._write, asyncio.Event()

    async def told_of(context: Any, message: worker_pb2.RunResponse) -> None:
        asyncio.get_running_loop().call_soon(writing.set)  # once the write has begun
        await write(context, message)

    monkeypatch.setattr(servicer_module, "_write", told_of)
    stream = await claimed(channel)
    writing.clear()
    await stream.plan(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    await writing.wait()
    await clock.pass_by(6.0)
    await stream.result()
    await clock.pass_by(6.0)
    await stream.step(rows=rows((1, 0, 1, 6)))
    await stream.close()
