"""Schedulers die, stall and repeat themselves; the client sees a pause, and the same text."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.apis.openai.chat_writer import ChatCompletionWriter
from services.router.dispatch.placement import MAX_LOSSES, Placement
from services.router.rpc import calls
from tests.fakes.waiting import HANG_S, until
from tests.integration.router.conftest import (
    GREETING,
    MODEL,
    Api,
    RefusedError,
    StartRouter,
    answer_text,
    fake_scheduler,
)
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, Script, frame_of, pack, unpack
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

IDS = [*byte_level().encode(GREETING).ids, EOS_TOKEN_ID]


def pausing(after: int, resume: asyncio.Event) -> Script:
    """The greeting, with a pause after so many tokens of the first attempt."""

    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        return Answer(IDS, pause_after=after if choice.attempt == 0 else None, resume=resume)

    return script


async def stream(api: Api, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True} | fields
    return api.stub.CreateChatCompletion(HttpBody(data=json.dumps(body).encode()))


def text_in(messages: list[bytes]) -> str:
    lines = b"".join(messages).decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    assert not any("error" in event for event in events), events
    return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])


async def read_until(call: Any, characters: int) -> list[bytes]:
    messages: list[bytes] = []
    while len(text_in(messages)) < characters:
        messages.append((await call.read()).data)
    return messages


async def read_rest(call: Any) -> list[bytes]:
    messages: list[bytes] = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message.data)
    return messages


@pytest.mark.parametrize("after", [0, 1, 5, 9])
async def test_a_broken_stream_goes_on_at_another_scheduler(start_router: StartRouter, after: int) -> None:
    resume = asyncio.Event()
    schedulers = [fake_scheduler(pausing(after, resume)) for _ in range(2)]
    api = await start_router(*schedulers)
    while not all(connection.is_ready for connection in api.router.placement.connections):
        await api.get("GetHealth")
    call = await stream(api, stream_options={"include_usage": True}, guided_regex="(.|\n)*")
    first = await _whichever_got_it(schedulers)
    (other,) = [scheduler for scheduler in schedulers if scheduler is not first]
    messages = await read_until(call, len(byte_level().decode(IDS[:after]).rstrip("\ufffd")))
    await first.stop()
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    assert messages[-1].endswith(b"data: [DONE]\n\n")
    usage = json.loads(b"".join(messages).decode().split("data: ")[-2])["usage"]
    assert usage["completion_tokens"] == len(IDS)
    (before,), (resubmitted,) = first.submits, other.submits
    assert resubmitted.prompt_token_ids == before.prompt_token_ids
    assert resubmitted.sampling == before.sampling
    assert resubmitted.constraints == before.constraints
    assert before.constraints.grammar
    (choice,) = resubmitted.choices
    assert choice.attempt == 1
    assert (before.choices[0].was_accepted, choice.was_accepted) == (False, True)
    assert unpack(choice.output_token_ids) == IDS[:after]


async def _whichever_got_it(schedulers: list[FakeScheduler]) -> FakeScheduler:
    waits = {
        asyncio.create_task(scheduler.wait_for(lambda scheduler=scheduler: bool(scheduler.submits))): scheduler  # type: ignore[misc]
        for scheduler in schedulers
    }
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return waits[done.pop()]


async def test_the_same_scheduler_takes_over_when_it_is_back(start_router: StartRouter) -> None:
    resume = asyncio.Event()
    scheduler = fake_scheduler(pausing(4, resume))
    api = await start_router(scheduler)
    call = await stream(api, n=2)
    messages = [(await call.read()).data]
    address = scheduler.address
    await scheduler.stop()
    while api.router.placement.is_ready:
        await api.get("GetMetrics")
    with pytest.raises(RefusedError) as caught:
        await api.get("GetHealth")
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    # Those that come meanwhile wait as well.
    waiting = asyncio.create_task(api.chat())
    resume.set()
    await scheduler.start(address)
    messages += await read_rest(call)
    assert len(text_in(messages)) == 2 * len(GREETING)
    assert (await waiting).json["choices"][0]["message"]["content"] == GREETING
    assert scheduler.num_tokenizer_calls == 1
    assert (await api.get("GetHealth")).json == {"status": "ok"}


async def test_a_request_fails_when_no_scheduler_comes_back_in_time(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(pausing(4, asyncio.Event()))
    api = await start_router(scheduler, scheduler_wait=0.2)
    whole = asyncio.create_task(api.refused("CreateChatCompletion", {"messages": [{"role": "user", "content": "x"}]}))
    await scheduler.wait_for(lambda: len(scheduler.submits) == 1)
    await scheduler.stop()
    refusal = await whole
    assert refusal.status is grpc.StatusCode.UNAVAILABLE
    assert "No scheduler of this model came back within 0.2 s." in refusal.error["message"]
    assert refusal.retry_after == "1"


async def test_a_router_that_has_just_started_waits_for_its_first_scheduler(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(GREETING))
    address = await scheduler.start()
    await scheduler.stop()
    scheduler.address = address
    api = await start_router(scheduler, wait=False)
    with pytest.raises(RefusedError):
        await api.get("GetHealth")
    chat = asyncio.create_task(api.chat())
    models = asyncio.create_task(api.get("ListModels"))
    await scheduler.start(address)
    assert (await chat).json["choices"][0]["message"]["content"] == GREETING
    assert MODEL in [model["id"] for model in (await models).json["data"]]


async def test_where_no_scheduler_ever_comes_requests_fail_in_time(start_router: StartRouter) -> None:
    api = await start_router(wait=False, scheduler_wait=0.1)
    refusal = await api.refused("CreateChatCompletion", {"messages": [{"role": "user", "content": "x"}]})
    assert refusal.status is grpc.StatusCode.UNAVAILABLE
    assert refusal.retry_after == "1"
    with pytest.raises(RefusedError):
        await api.get("ListModels")


async def test_a_client_that_leaves_is_an_abort_at_once(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(pausing(3, asyncio.Event()))
    api = await start_router(scheduler)
    call = await stream(api, n=2)
    await call.read()
    call.cancel()
    ids = {choice.sequence_id for choice in scheduler.submits[0].choices}
    await scheduler.wait_for(lambda: set(scheduler.aborted) == ids)
    # Also before the first byte, and for whole answers.
    call = await stream(api, stream=False)
    await scheduler.wait_for(lambda: len(scheduler.submits) == 2)
    call.cancel()
    await scheduler.wait_for(lambda: scheduler.num_running == 0)


async def test_a_deadline_goes_with_the_request_and_ends_it(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(pausing(3, asyncio.Event()))
    api = await start_router(scheduler)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    timeout = 0.25
    while not scheduler.submits:  # on a slow machine it may end before it comes that far
        timeout *= 2
        call = api.stub.CreateChatCompletion(HttpBody(data=json.dumps(body).encode()), timeout=timeout)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await scheduler.wait_for(lambda: scheduler.num_running == 0)
    assert 0 < scheduler.submits[0].timeout_ms <= 1000 * timeout
    scheduler.script = answer_text(GREETING)
    await api.chat()
    assert not scheduler.submits[-1].HasField("timeout_ms")


async def test_stale_and_double_frames_are_dropped_and_a_gap_is_asked_for_again(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(pausing(4, asyncio.Event()))
    api = await start_router(scheduler)
    call = await stream(api)
    messages = await read_until(call, len(byte_level().decode(IDS[:4])))
    (choice,) = scheduler.submits[0].choices
    wrong = byte_level().encode("WRONG").ids
    stale = scheduler_pb2.Choice(sequence_id=choice.sequence_id, attempt=7)
    await scheduler.send(frame_of(choice, 2, wrong))
    await scheduler.send(frame_of(stale, 4, wrong))
    await scheduler.send(frame_of(scheduler_pb2.Choice(sequence_id=99), 4, wrong))
    # Right, and then one token too far.
    await scheduler.send(frame_of(choice, 4, IDS[4:6]))
    await scheduler.send(frame_of(choice, 7, wrong))
    await scheduler.wait_for(lambda: len(scheduler.submits) == 2)
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    assert choice.sequence_id in scheduler.aborted
    (again,) = scheduler.submits[1].choices
    assert (again.attempt, unpack(again.output_token_ids)) == (1, IDS[:6])


@pytest.mark.parametrize(("max_tokens", "reason"), [(None, "stop"), (5, "length")])
async def test_a_finish_that_was_lost_is_known_from_the_last_token(
    start_router: StartRouter, max_tokens: int | None, reason: str
) -> None:
    scheduler = fake_scheduler(pausing(2, asyncio.Event()))
    api = await start_router(scheduler)
    call = await stream(api, **({} if max_tokens is None else {"max_tokens": max_tokens}))
    messages = [(await call.read()).data]
    (choice,) = scheduler.submits[0].choices
    await scheduler.send(frame_of(choice, 2, IDS[2:max_tokens]))
    await scheduler.break_streams()
    messages += await read_rest(call)
    assert text_in(messages) == (GREETING if max_tokens is None else byte_level().decode(IDS[:max_tokens]))
    assert f'"finish_reason":"{reason}"'.encode() in b"".join(messages)
    assert len(scheduler.submits) == 1


async def test_who_was_busy_is_asked_again_after_a_loss(start_router: StartRouter) -> None:
    busy = scheduler_pb2.Error(code=8, message="the queue is full")
    full = fake_scheduler(lambda submit, choice: Answer([], error=busy))
    free = fake_scheduler(pausing(3, asyncio.Event()))
    free.script = lambda submit, choice: Answer(IDS, pause_after=3)
    free.load.outstanding_tokens = 10**6
    api = await start_router(full, free)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    call = await stream(api)
    messages = [(await call.read()).data]
    full.script = answer_text(GREETING)
    await free.stop()
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    assert [submit.choices[0].attempt for submit in full.submits] == [0, 2]


def frames_that_break_the_contract(choice: scheduler_pb2.Choice) -> list[scheduler_pb2.Frame]:
    descending = sampling_pb2.PromptLogprobs(
        sequence_ids=pack([choice.sequence_id] * 2), first_positions=pack([1, 1]), offsets=pack([0, 2, 1]),
        logprobs=pack([0]), ranks=pack([1]), top_counts=pack([0, 0]),
    )  # fmt: skip
    return [
        scheduler_pb2.Frame(sequence_ids=pack([1])),
        scheduler_pb2.Frame(sequence_ids=b"1"),
        scheduler_pb2.Frame(prompt_logprobs=descending, prompt_logprobs_attempts=pack([0, 0])),
        frame_of(choice, 4, [7] * 10_000),
    ]


@pytest.mark.parametrize("index", range(4))
async def test_a_frame_that_breaks_the_contract_costs_the_stream_not_the_request(
    start_router: StartRouter, index: int, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = fake_scheduler(pausing(4, asyncio.Event()))
    api = await start_router(scheduler)
    call = await stream(api)
    messages = await read_until(call, len(byte_level().decode(IDS[:4])))
    (choice,) = scheduler.submits[0].choices
    await scheduler.send(frames_that_break_the_contract(choice)[index])
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    assert scheduler.num_connects == 2
    assert "Traceback" not in caplog.text


async def test_a_silent_scheduler_is_dropped(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(pausing(4, asyncio.Event()))
    api = await start_router(scheduler, scheduler_silence=0.5)
    call = await stream(api)
    messages = [(await call.read()).data]
    scheduler.silent = True
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    assert scheduler.num_connects >= 2


async def test_a_fault_of_the_router_in_one_session_does_not_end_its_dialling(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_hello = Placement.on_hello
    faults = [RuntimeError("a fault")]

    async def faulty(self: Placement, *args: Any) -> None:
        if faults:
            raise faults.pop()
        await on_hello(self, *args)

    monkeypatch.setattr(Placement, "on_hello", faulty)
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    assert scheduler.num_connects == 2
    assert (await api.chat()).json["choices"][0]["message"]["content"] == GREETING


async def test_a_fault_after_the_first_byte_is_an_event(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = asyncio.Event()
    scheduler = fake_scheduler(pausing(5, resume))
    api = await start_router(scheduler)
    call = await stream(api)
    await read_until(call, 1)

    def faulty(*_: object) -> bytes:
        raise RuntimeError("a fault")

    monkeypatch.setattr(ChatCompletionWriter, "events", faulty)
    resume.set()
    last = (await read_rest(call))[-1].decode()
    error = json.loads(last.strip().split("data: ")[-1])["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert await call.code() is grpc.StatusCode.OK


async def test_a_client_that_never_reads_is_given_up(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CLIENT_STALL_SECONDS", 0.3)
    scheduler = fake_scheduler(answer_text("many words " * 20))
    api = await start_router(scheduler)
    # More than fits between the two.
    call = await stream(api, n=64, logprobs=True, top_logprobs=20)
    async with asyncio.timeout(HANG_S):
        await scheduler.wait_for(lambda: bool(scheduler.submits))
        while api.router.generator.num_requests:
            await api.get("GetHealth")
        # The scheduler computes no more for it.
        await scheduler.wait_for(lambda: len(scheduler.aborted) == 64)
        # When the client reads at last, it finds what had been sent, and then why there is no more.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_rest(call)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "quire-error" in dict(caught.value.trailing_metadata())


async def test_a_request_that_kills_every_scheduler_is_given_up(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()

    def deadly(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        for outbox in scheduler._outboxes:
            outbox.put_nowait(None)
        return Answer(IDS, pause_after=0)

    scheduler.script = deadly
    api = await start_router(scheduler)
    refusal = await api.refused("CreateChatCompletion", {"messages": [{"role": "user", "content": "x"}]})
    # Nobody is to send it again.
    assert refusal.status is grpc.StatusCode.INTERNAL
    assert "in a row were lost" in refusal.error["message"]
    scheduler.script = answer_text(GREETING)
    assert (await api.chat()).json["choices"][0]["message"]["content"] == GREETING


async def test_a_new_token_ends_a_row_of_losses(start_router: StartRouter) -> None:
    """The request loses more schedulers than it may in a row, and gets one token from each."""
    num_losses = MAX_LOSSES + 2

    def one_token(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        position = len(choice.output_token_ids) // 4
        return Answer(IDS, pause_after=position + 1 if position < num_losses else None)

    scheduler = fake_scheduler(one_token)
    api = await start_router(scheduler)
    call = await stream(api)
    (connection,) = api.router.placement.connections
    for number in range(1, num_losses + 1):
        await until(lambda: [len(one.output_token_ids) for one in connection.sequences] == [number])  # noqa: B023
        for outbox in scheduler._outboxes:
            outbox.put_nowait(None)
    assert text_in(await read_rest(call)) == GREETING
    assert len(scheduler.submits) == num_losses + 1


async def test_a_tokenizer_that_is_not_what_was_promised_is_not_used(
    start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = fake_scheduler()
    honest = scheduler.bundle
    scheduler.bundle = honest[:-1] + b"\x00"
    api = await start_router(scheduler, wait=False)
    while scheduler.num_tokenizer_calls < 2:
        with pytest.raises(RefusedError):
            await api.get("GetHealth")
    # Said, and only once.
    warnings = [record for record in caplog.records if record.levelname == "WARNING" and "sha256" in record.message]
    assert len(warnings) == 1
    scheduler.bundle = honest
    await api.router.ready.wait()
    assert (await api.chat()).json["choices"][0]["message"]["content"] == GREETING


async def test_health_follows_the_schedulers(start_router: StartRouter) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    health = health_pb2_grpc.HealthStub(api.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service="quire.openai.v1.OpenAIService"))

    async def until(status: Any) -> None:
        while (await watch.read()).status != status:
            pass

    await until(health_pb2.HealthCheckResponse.SERVING)
    address = scheduler.address
    await scheduler.stop()
    await until(health_pb2.HealthCheckResponse.NOT_SERVING)
    await scheduler.start(address)
    await until(health_pb2.HealthCheckResponse.SERVING)
    watch.cancel()
