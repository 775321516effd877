"""The contract of `worker.proto`, over a real gRPC stream to a real engine."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import grpc
import numpy as np
import pytest

from quire.inference.v1 import model_pb2, sampling_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.worker.startup.load import LoadedWorker
from services.worker.step.model_runner import NO_NUMBERS, STEP_FAILED, ModelRunner
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
