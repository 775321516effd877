"""Prompts whose embedding is wanted, through the scheduler's service, beside others that generate."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from quire.inference.v1 import constraints_pb2, pooling_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.core.sequence import FinishReason
from services.scheduler.sessions.frame import MAX_EMBEDDING_BYTES
from services.scheduler.sessions.session import RouterSession
from tests.fakes.fake_model import FakeModel, expected_output, expected_vector
from tests.fakes.fake_worker import FakeWorker, Script
from tests.integration.scheduler.driver import Router, running

LAST = pooling_pb2.EmbeddingInfo(size=2, pooling=pooling_pb2.POOLING_TYPE_LAST)
MEAN = pooling_pb2.EmbeddingInfo(size=2, pooling=pooling_pb2.POOLING_TYPE_MEAN)


async def embed(router: Router, sequence_id: int, prompt: list[int], attempt: int = 0) -> None:
    submit = scheduler_pb2.Submit(
        prompt_token_ids=array("I", prompt).tobytes(),
        choices=[scheduler_pb2.Choice(sequence_id=sequence_id, attempt=attempt)],
        pooling=pooling_pb2.PoolingParams(),
    )
    await router._call.write(scheduler_pb2.ConnectRequest(submit=submit))


@pytest.mark.parametrize(("embedding", "die_at_step"), [(LAST, None), (MEAN, None), (LAST, 9), (MEAN, 9)])
async def test_vectors_and_tokens_are_right_although_blocks_are_short_and_a_worker_dies(
    tmp_path: Path, embedding: pooling_pb2.EmbeddingInfo, die_at_step: int | None
) -> None:
    worker = FakeWorker(
        lambda: FakeModel(
            num_blocks=20, max_num_batched_tokens=24, num_host_blocks=16, pools_all_tokens=embedding is MEAN
        ),
        Script(die_at_step=die_at_step),
        max_model_len=80,
        embedding=embedding,
    )
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        assert router.hello.model.embedding == embedding
        # Some begin alike.
        prompts = {index: [7] * (index % 9) + list(range(index, index + 3 + index % 30)) for index in range(40)}
        for index, prompt in prompts.items():
            if index % 2:
                await embed(router, index, prompt)
            else:
                await router.submit(index, prompt, 20)
        await router.read_until_finished(*prompts)
        assert worker.script.die_at_step is None
        for index, prompt in prompts.items():
            if index % 2:
                assert router.finished[index].embedding == expected_vector(prompt)
                assert router.finished[index].reason == sampling_pb2.FINISH_REASON_STOP
            else:
                assert router.outputs[index] == expected_output(prompt, 20)
        load = (await stack.stats()).load
        assert load.num_preemptions > 0, "the pool was to be too small"
        assert load.num_used_blocks == load.num_running == load.num_waiting == 0


async def test_an_encoder_s_prompts_are_planned_whole_and_share_nothing(tmp_path: Path) -> None:
    worker = FakeWorker(
        lambda: FakeModel(num_blocks=8, block_size=24, max_num_batched_tokens=24, pools_all_tokens=True),
        max_model_len=24,
        embedding=LAST,
        is_encoder=True,
    )
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        for index in range(6):
            await embed(router, index, [5] * 24)
        await router.read_until_finished(*range(6))
        assert {router.finished[index].embedding for index in range(6)} == {expected_vector([5] * 24)}
        stats = await stack.stats()
        assert stats.load.num_prefix_cache_hits == 0
        assert stats.num_steps >= 6


async def test_what_is_said_of_an_output_is_not_read_where_there_is_none(tmp_path: Path) -> None:
    worker = FakeWorker(embedding=LAST)
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        submit = scheduler_pb2.Submit(
            prompt_token_ids=array("I", [5, 6, 7]).tobytes(),
            sampling=sampling_pb2.SamplingParams(prompt_logprobs=2),
            constraints=constraints_pb2.TokenConstraints(grammar="start: /x/"),
            choices=[scheduler_pb2.Choice(sequence_id=1)],
            pooling=pooling_pb2.PoolingParams(),
        )
        await router._call.write(scheduler_pb2.ConnectRequest(submit=submit))
        await router.read_until_finished(1)
        assert router.finished[1].embedding == expected_vector([5, 6, 7])
        assert not worker.grammars


async def test_what_the_model_cannot_do_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with running(tmp_path / "a", FakeWorker()) as stack:
        router = await stack.router()
        await embed(router, 1, [5])
        await router.read_until_finished(1)
        assert router.finished[1].error.message == "the model gives no embeddings"
    encoder = FakeWorker(lambda: FakeModel(max_num_batched_tokens=128), embedding=MEAN, is_encoder=True)
    async with running(tmp_path / "b", encoder) as stack:
        router = await stack.router()
        await router.submit(1, [5], 3)
        await router.read_until_finished(1)
        assert "generates nothing" in router.finished[1].error.message


async def test_a_frame_is_closed_at_a_megabyte_of_vectors() -> None:
    session = RouterSession("test")
    vector = bytes(400_000)
    for sequence_id in range(7):
        session.add_finished(session.add_sequence(sequence_id, 0), FinishReason.STOP, embedding=vector)
    frames = [message.frame for message in await session.next_messages()]
    assert [len(frame.finished) for frame in frames] == [3, 3, 1]
    assert all(frame.ByteSize() < MAX_EMBEDDING_BYTES + len(vector) for frame in frames)
    assert [finished.sequence_id for frame in frames for finished in frame.finished] == list(range(7))
