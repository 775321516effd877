"""The contract of `worker.proto`, over a real gRPC stream to a real engine."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from quire.inference.v1 import model_pb2, sampling_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.worker.service import servicer as servicer_module
from services.worker.service.servicer import WorkerServicer
from services.worker.startup.load import LoadedWorker
from services.worker.step.model_runner import NO_NUMBERS, STEP_FAILED, ModelRunner
from shared.patience import NUM_TICKS
from tests.fakes.loop_clock import LoopClock
from tests.fakes.waiting import HANG_S
from tests.integration.worker.client import Stream, claimed, new_sequence, rows, u32, values
from tests.integration.worker.conftest import POISON
from tests.unit.worker.driver import Driver, Request

PROMPT = [5, 6, 7, 8, 9, 10]


def greedy(engine: LoadedWorker, prompt: list[int], num_outputs: int) -> list[int]:
    """What the runner by itself makes of a prompt."""
    engine.runner.reset()
    output = Driver(engine.runner, max_running=1, idle=0.0).run(Request(prompt, num_outputs))[0].output
    engine.runner.reset()
    return output


async def test_a_claim_is_answered_by_what_the_worker_is(channel: grpc.aio.Channel) -> None:
    stream = Stream(channel)
    hello = await stream.claim()
    assert hello.boot_id != 0
    assert hello.epoch == 1
    assert (hello.num_blocks, hello.block_size) == (24, 8)
    assert (hello.max_num_seqs, hello.max_num_batched_tokens) == (4, 64)
    assert hello.model.name == "tiny-llama"
    assert hello.model.max_model_len == 24 * 8  # what the KV cache holds, as the model takes more
    assert list(hello.model.eos_token_ids) == [2]
    assert hello.model.architecture == "LlamaForCausalLM"
    assert hello.model.dtype == "float32"


async def test_two_plans_in_flight_run_as_one_after_the_other_would(
    channel: grpc.aio.Channel, engine: LoadedWorker
) -> None:
    expected = greedy(engine, PROMPT, 5)
    stream = await claimed(channel)
    await stream.plan(new_sequences=[new_sequence(1, 2, PROMPT, [3])], rows=rows((1, 2, 6, 0)))
    await stream.plan(rows=rows((1, 2, 1, 6)))  # on the token of the step before, which nobody has seen
    output = []
    for position in range(7, 10):
        result = await stream.result()
        output += values(result.token_ids)
        new_blocks = [[11]] if position == 8 else [[]]
        await stream.plan(rows=rows((1, 2, 1, position), new_blocks=new_blocks))
        assert values(result.wire_ids) == [1]
        assert result.timings.run_us > 0
    output += values((await stream.result()).token_ids) + values((await stream.result()).token_ids)
    assert output == expected
    await stream.close()


async def test_prompt_chunks_that_do_not_reach_the_end_draw_nothing(
    channel: grpc.aio.Channel, engine: LoadedWorker
) -> None:
    expected = greedy(engine, PROMPT, 1)
    stream = await claimed(channel)
    first = await stream.step(new_sequences=[new_sequence(1, 0, PROMPT, [5])], rows=rows((1, 0, 4, 0)))
    assert values(first.wire_ids) == []
    second = await stream.step(rows=rows((1, 0, 2, 4)))
    assert values(second.token_ids) == expected


async def test_a_sequence_goes_on_from_blocks_that_another_computed_shared_and_copied(
    channel: grpc.aio.Channel, engine: LoadedWorker
) -> None:
    prompt = list(range(20, 40))  # two full blocks of eight and half a third
    expected = greedy(engine, prompt, 5)
    stream = await claimed(channel)
    first = await stream.step(new_sequences=[new_sequence(1, 0, prompt, [1, 2, 3])], rows=rows((1, 0, 20, 0)))
    outputs = {1: values(first.token_ids), 2: []}
    second = new_sequence(2, 1, prompt, [1, 2, 4])
    second.num_computed_tokens = 19
    for step in range(4):
        fork = {"new_sequences": [second], "copy_sources": u32(3), "copy_destinations": u32(4)} if step == 0 else {}
        result = await stream.step(rows=rows((1, 0, 1, 20 + step), (2, 1, 1, 19 + step)), **fork)
        for wire_id, token_id in zip(values(result.wire_ids), values(result.token_ids), strict=True):
            outputs[wire_id].append(token_id)
    assert outputs == {1: expected, 2: expected[:4]}


async def test_logprobs_travel_as_columns(channel: grpc.aio.Channel) -> None:
    stream = await claimed(channel)
    asking = sampling_pb2.SamplingParams(temperature=0.0, logprobs=3)
    result = await stream.step(
        new_sequences=[new_sequence(1, 0, PROMPT, [1]), new_sequence(2, 1, PROMPT, [2], asking)],
        rows=rows((1, 0, 6, 0), (2, 1, 6, 0)),
    )
    columns = result.logprobs
    assert values(columns.token_indices) == [1]
    assert values(columns.top_counts) == [3]
    likeliest = np.frombuffer(columns.top_logprobs, "<f4")
    assert values(columns.top_token_ids)[0] == values(result.token_ids)[1]
    assert np.frombuffer(columns.logprobs, "<f4")[0] == likeliest[0]
    assert (np.diff(likeliest) <= 0).all()


async def test_long_plans_and_results_come_in_parts(channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.message_parts.PART_BYTES", 16)
    await test_logprobs_travel_as_columns(channel)


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


async def test_a_worker_that_stops_tells_its_owner_and_waits_for_it(
    channel: grpc.aio.Channel, servicer: WorkerServicer
) -> None:
    owner = Stream(channel)
    await owner.claim("owner", num_groups=0)
    draining = asyncio.create_task(servicer.drain())
    assert await owner.is_told_of_drain()
    with pytest.raises(grpc.aio.AioRpcError, match="shutting down") as refusal:
        await Stream(channel).claim("another", num_groups=0, asks_owner=True)
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


async def test_a_scheduler_that_falls_silent_loses_the_worker_and_one_that_sends_heartbeats_keeps_it(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, wait_for_message, waiting = LoopClock(), servicer_module._next, asyncio.Event()

    async def told_of(requests: Any) -> Any:
        asyncio.get_running_loop().call_soon(waiting.set)  # once the wait has begun
        return await wait_for_message(requests)

    monkeypatch.setattr(servicer_module, "_next", told_of)
    # A write may still be under way when the clock is moved.
    monkeypatch.setattr(servicer_module, "WRITE_TIMEOUT_S", 1e6)
    first = await claimed(channel)
    for _ in range(4):
        await waiting.wait()
        waiting.clear()
        await clock.pass_by(0.6 * servicer_module.OWNER_SILENCE_S)
        await first.call.write(worker_pb2.RunRequest(heartbeat=worker_pb2.Heartbeat()))
    await waiting.wait()
    await first.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    # Its connection stays and answers pings; that alone does not keep the worker.
    for _ in range(NUM_TICKS):
        await clock.pass_by(1.1 * servicer_module.OWNER_SILENCE_S / NUM_TICKS)
    second = await claimed(channel)
    assert second.hello.epoch == first.hello.epoch + 1
    with pytest.raises(grpc.aio.AioRpcError, match="neither a plan nor a heartbeat") as end:
        await first.result()
    assert end.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_new_epoch_has_no_sequences_and_empty_pages_but_the_weights_stay(
    channel: grpc.aio.Channel, engine: LoadedWorker
) -> None:
    expected = greedy(engine, PROMPT, 1)
    first = await claimed(channel)
    await first.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    first.call.cancel()  # as a scheduler's death looks
    second = await claimed(channel)
    result = await second.step(new_sequences=[new_sequence(1, 0, PROMPT, [1])], rows=rows((1, 0, 6, 0)))
    assert values(result.token_ids) == expected
    third_row = rows((7, 0, 1, 6))
    await second.plan(rows=third_row)
    with pytest.raises(grpc.aio.AioRpcError, match="sequence 7 is not in the planned slot"):
        await second.result()


async def test_a_stream_that_does_not_begin_with_a_claim_is_refused(channel: grpc.aio.Channel) -> None:
    stream = Stream(channel)
    await stream.plan(epoch=1)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await stream.result()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


ADMITTED = new_sequence(1, 0, PROMPT, [1])
BROKEN_PLANS: dict[str, dict[str, Any]] = {
    "is for epoch 99": {"epoch": 99},
    "has step_id 5": {"step_id": 5},
    "sequence 9 is not in the planned slot": {"rows": rows((9, 0, 1, 6))},
    "has a slot out of range": {"rows": rows((1, 4, 1, 6))},
    "is not at the planned position": {"rows": rows((1, 0, 1, 5))},
    "has fewer tokens than are scheduled": {"rows": rows((1, 0, 2, 6))},
    "has no tokens scheduled": {"rows": rows((1, 0, 0, 6))},
    "two rows have the same slot": {"rows": rows((1, 0, 1, 6), (1, 0, 1, 6))},
    "a new block id is not below 24": {"rows": rows((1, 0, 1, 6), new_blocks=[[24]])},
    "has fewer blocks than tokens": {
        "new_sequences": [new_sequence(2, 1, list(range(20, 30)), [2])],
        "rows": rows((2, 1, 10, 0)),
    },
    "65 tokens are scheduled": {
        "new_sequences": [new_sequence(2, 1, [5] * 65, list(range(2, 11)))],
        "rows": rows((2, 1, 65, 0)),
    },
    "the plan releases sequence 3, which holds no slot": {"released_wire_ids": u32(3)},
    "new sequence 1 exists already": {"new_sequences": [new_sequence(1, 1, PROMPT, [2])]},
    "which another sequence holds": {"new_sequences": [new_sequence(2, 0, PROMPT, [2])]},
    "has slot 4 of 4": {"new_sequences": [new_sequence(2, 4, PROMPT, [2])]},
    "has a block id out of range": {"new_sequences": [new_sequence(2, 1, PROMPT, [24])]},
    "has a token id out of range": {"new_sequences": [new_sequence(2, 1, [199], [2])]},
    "has 0 tokens": {"new_sequences": [new_sequence(2, 1, [], [2])]},
    "the rows' columns differ in length": {"rows": worker_pb2.Rows(wire_ids=u32(1), slots=u32(0))},
    "new_block_offsets do not partition": {
        "rows": worker_pb2.Rows(
            wire_ids=u32(1),
            slots=u32(0),
            num_scheduled_tokens=u32(1),
            num_computed_tokens=u32(6),
            new_block_offsets=u32(0, 2),
            new_block_ids=u32(4),
        )
    },
    "the copies' columns differ": {"copy_sources": u32(1), "copy_destinations": u32()},
    "a copy is out of range: blocks must be below 24": {"copy_sources": u32(1), "copy_destinations": u32(24)},
    "two copies have the same destination": {"copy_sources": u32(1, 2), "copy_destinations": u32(3, 3)},
    "no whole number of u32": {"released_wire_ids": b"\0\0\0"},
}


@pytest.mark.parametrize("problem", BROKEN_PLANS)
async def test_a_plan_that_breaks_the_contract_ends_the_stream_and_the_epoch(
    channel: grpc.aio.Channel, problem: str
) -> None:
    stream = await claimed(channel)
    await stream.step(new_sequences=[ADMITTED], rows=rows((1, 0, 6, 0)))
    await stream.plan(**BROKEN_PLANS[problem])
    with pytest.raises(grpc.aio.AioRpcError) as end:
        await stream.result()
    assert end.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert problem in str(end.value.details())
    following = await claimed(channel)
    assert following.hello.epoch == stream.hello.epoch + 1


async def test_not_a_number_fails_one_sequence_and_no_other(channel: grpc.aio.Channel, engine: LoadedWorker) -> None:
    poisoned = [5, POISON, 7]
    expected = greedy(engine, PROMPT, 3)
    stream = await claimed(channel)
    # In flight together: the second plan is made before anybody can know of the failure.
    await stream.plan(
        new_sequences=[new_sequence(1, 0, poisoned, [1]), new_sequence(2, 1, PROMPT, [2])],
        rows=rows((1, 0, 3, 0), (2, 1, 6, 0)),
    )
    await stream.plan(rows=rows((1, 0, 1, 3), (2, 1, 1, 6)))
    first, second = await stream.result(), await stream.result()
    for result in (first, second):
        assert values(result.wire_ids) == [2]
        assert [(error.wire_id, error.message) for error in result.errors] == [(1, NO_NUMBERS)]
    # Its page and slot are as good as any other's afterwards.
    third = await stream.step(
        released_wire_ids=u32(1),
        new_sequences=[new_sequence(3, 0, PROMPT, [1])],
        rows=rows((2, 1, 1, 7), (3, 0, 6, 0)),
    )
    assert not third.errors
    assert values(first.token_ids) + values(second.token_ids) + values(third.token_ids)[:1] == expected
    assert values(third.token_ids)[1] == expected[0]


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        ({"temperature": -1.0}, "temperature must be from 0 to 2, but is -1."),
        ({"temperature": np.nan}, "temperature must be from 0 to 2, but is nan."),
        ({"top_p": 0.0}, "top_p must be over 0 to 1, but is 0."),
        ({"top_p": np.nan}, "top_p must be over 0 to 1, but is nan."),
        ({"min_p": 1.5}, "min_p must be from 0 to 1, but is 1.5."),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be over 0 to 100, but is 0."),
        ({"repetition_penalty": np.nan}, "repetition_penalty must be over 0 to 100, but is nan."),
        ({"presence_penalty": np.inf}, "presence_penalty must be from -2 to 2, but is inf."),
        ({"frequency_penalty": -3.0}, "frequency_penalty must be from -2 to 2, but is -3."),
        ({"logprobs": 21}, "logprobs must be from 0 to 20, but is 21."),
        ({"logit_bias": [{"token_id": 199, "bias": 1}]}, "logit_bias names token 199, but the model has 199 tokens."),
        (
            {"logit_bias": [{"token_id": 3, "bias": np.nan}]},
            "logit_bias must be from -100 to 100, but is nan for token 3.",
        ),
    ],
)
async def test_sampling_out_of_range_fails_that_sequence_and_no_other(
    channel: grpc.aio.Channel, engine: LoadedWorker, sampling: dict[str, Any], sentence: str
) -> None:
    expected = greedy(engine, PROMPT, 3)
    stream = await claimed(channel)
    odd = sampling_pb2.SamplingParams(**sampling)
    # As many tokens and slots as any other's: the next plan is made before anybody can know of the failure.
    await stream.plan(
        new_sequences=[new_sequence(1, 0, PROMPT, [1], odd), new_sequence(2, 1, PROMPT, [2])],
        rows=rows((1, 0, 6, 0), (2, 1, 6, 0)),
    )
    await stream.plan(rows=rows((1, 0, 1, 6), (2, 1, 1, 6)))
    first, second = await stream.result(), await stream.result()
    for result in (first, second):
        assert values(result.wire_ids) == [2]
        assert [(error.wire_id, error.message) for error in result.errors] == [(1, sentence)]
    # Released, its wire id and slot are as good as any other's.
    third = await stream.step(
        released_wire_ids=u32(1),
        new_sequences=[new_sequence(1, 0, PROMPT, [1])],
        rows=rows((1, 0, 6, 0), (2, 1, 1, 7)),
    )
    assert not third.errors
    assert values(third.token_ids) == [expected[0], expected[2]]
    await stream.close()


async def test_a_step_that_raises_fails_its_sequences_and_no_others(
    channel: grpc.aio.Channel, engine: LoadedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = greedy(engine, PROMPT, 2)
    stream = await claimed(channel)
    await stream.step(
        new_sequences=[new_sequence(1, 0, PROMPT, [1]), new_sequence(2, 1, PROMPT, [2])],
        rows=rows((1, 0, 6, 0), (2, 1, 6, 0)),
    )
    with monkeypatch.context() as patch:

        def exhausted(*_: object) -> None:
            raise MemoryError("no memory for this step")

        patch.setattr(engine.runner._forward, "run", exhausted)
        failed = await stream.step(rows=rows((1, 0, 1, 6)))
    assert [(error.wire_id, error.message) for error in failed.errors] == [(1, STEP_FAILED)]
    after = await stream.step(rows=rows((1, 0, 1, 7), (2, 1, 1, 6)))
    assert [error.wire_id for error in after.errors] == [1]
    assert values(after.token_ids) == expected[1:]


async def test_an_error_that_leaves_no_state_ends_the_epoch_and_not_the_process(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await claimed(channel)
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise RuntimeError("device lost")

        patch.setattr(ModelRunner, "collect", broken)
        await stream.plan(new_sequences=[ADMITTED], rows=rows((1, 0, 6, 0)))
        with pytest.raises(grpc.aio.AioRpcError) as end:
            await stream.result()
    assert end.value.code() is grpc.StatusCode.INTERNAL
    following = await claimed(channel)
    result = await following.step(new_sequences=[ADMITTED], rows=rows((1, 0, 6, 0)))
    assert len(values(result.token_ids)) == 1


async def test_an_error_in_reading_a_plan_ends_the_stream_and_lets_the_next_scheduler_in(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await claimed(channel)
    with monkeypatch.context() as patch:

        def broken(_: object) -> None:
            raise RuntimeError("a plan like no other")

        patch.setattr("services.worker.service.servicer.plan_from_proto", broken)
        await stream.plan(new_sequences=[ADMITTED], rows=rows((1, 0, 6, 0)))
        async with asyncio.timeout(HANG_S):
            with pytest.raises(grpc.aio.AioRpcError) as end:
                await stream.result()
    assert end.value.code() is grpc.StatusCode.INTERNAL
    following = await claimed(channel)
    result = await following.step(new_sequences=[ADMITTED], rows=rows((1, 0, 6, 0)))
    assert len(values(result.token_ids)) == 1


async def test_many_plans_in_flight_are_held_back_not_dropped(channel: grpc.aio.Channel) -> None:
    stream = await claimed(channel)

    async def send() -> None:
        await stream.plan(new_sequences=[new_sequence(1, 0, PROMPT, [*range(24)])], rows=rows((1, 0, 6, 0)))
        for position in range(6, 106):
            await stream.plan(rows=rows((1, 0, 1, position)))

    sending = asyncio.create_task(send())
    step_ids = [(await stream.result()).step_id for _ in range(101)]
    await sending
    assert step_ids == list(range(1, 102))
    await stream.close()


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


async def test_the_tokenizer_comes_in_chunks_that_match_its_digest(channel: grpc.aio.Channel) -> None:
    hello = await Stream(channel).claim()
    stub = worker_pb2_grpc.WorkerServiceStub(channel)
    call: Any = stub.GetTokenizer(model_pb2.GetTokenizerRequest())
    chunks = [response.chunk async for response in call]
    assert len(chunks) == 3
    assert max(map(len, chunks)) == 512 * 1024
    data = b"".join(chunks)
    assert len(data) == hello.model.tokenizer_bytes
    assert hashlib.sha256(data).hexdigest() == hello.model.tokenizer_sha256
    assert b"WordLevel" in model_pb2.TokenizerBundle.FromString(data).tokenizer_json


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
        await Stream(channel).claim()
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
