"""What docs/grpc.md says to whoever writes a router of their own: the scheduler's protocol, as it answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from quire.worker.v1 import worker_pb2
from tests.fakes.fake_model import EOS_TOKEN_ID, expected_output
from tests.fakes.fake_worker import FakeWorker, Script
from tests.integration.scheduler.driver import running

# A prompt whose output reaches the model's end token after some tokens.
ENDING = next([n] for n in range(1, 500) if 3 < len(expected_output([n], 100)) < 20)


async def test_an_aborted_sequence_has_no_finished(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(1)
    async with running(tmp_path, FakeWorker(script=Script(gate=gate))) as stack:
        router = await stack.router()
        await router.submit(1, [5], 40)
        while not router.outputs[1]:
            await router.read()
        await router.abort(1)
        await stack.stats_when(lambda stats: stats.num_aborted == 1)
        for _ in range(100):
            gate.release()
        await router.submit(2, [6], 20)
        await router.read_until_finished(2)
        assert set(router.finished) == {2}


async def test_an_end_token_is_among_the_tokens(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        await router.submit(1, ENDING, 100)
        await router.read_until_finished(1)
        assert router.outputs[1][-1] == EOS_TOKEN_ID
        assert router.finished[1].reason == sampling_pb2.FINISH_REASON_STOP


async def test_an_id_may_be_used_again_and_replaces_a_sequence_under_way(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(1)
    async with running(tmp_path, FakeWorker(script=Script(gate=gate))) as stack:
        router = await stack.router()
        await router.submit(1, [5], 40)
        while not router.outputs[1]:
            await router.read()
        router.outputs[1] = []
        await router.submit(1, [6], 8, attempt=1)
        await stack.stats_when(lambda stats: stats.num_aborted == 1)
        for _ in range(100):
            gate.release()
        await router.read_until_finished(1)
        assert (router.finished[1].attempt, router.outputs[1]) == (1, expected_output([6], 8))
        # After its end, too.
        del router.finished[1]
        router.outputs[1] = []
        await router.submit(1, [7], 8)
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output([7], 8)


@pytest.mark.parametrize(("boot_id", "num_losses"), [(1, 0), (2, 3)])
async def test_how_an_exit_turned_out_is_told_even_after_an_abort(
    tmp_path: Path, boot_id: int, num_losses: int
) -> None:
    may_claim, worker = asyncio.Event(), FakeWorker(script=Script(num_cuts=1))
    take = worker.ownership.take

    async def take_second_time_later(claim: worker_pb2.Claim) -> None:
        if worker.epoch == 1:
            await may_claim.wait()
        await take(claim)

    worker.ownership.take = take_second_time_later  # type: ignore[method-assign]
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [5], 40)
        while not router.losses:
            await router.read()
        await router.abort(1)
        await stack.stats_when(lambda stats: stats.num_aborted == 1)
        worker.boot_id = boot_id
        may_claim.set()
        while len(router.losses) < 2:
            await router.read()
        told = [(loss.sequence_id, loss.num_losses, loss.is_unproved) for loss in router.losses]
        assert told == [(1, 3, True), (1, num_losses, False)]


async def test_no_time_left_is_a_deadline_that_has_passed(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker(script=Script(gate=asyncio.Semaphore(0)))) as stack:
        router = await stack.router()
        await router.submit(1, [5], 40, timeout_ms=0)
        await router.read_until_finished(1)
        assert router.finished[1].reason == sampling_pb2.FINISH_REASON_ERROR
        assert router.finished[1].error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_a_bad_column_ends_its_sequences_alone_with_code_3(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        bad = scheduler_pb2.Submit(
            prompt_token_ids=b"1234567",
            stop=sampling_pb2.StopConditions(max_tokens=4),
            choices=[scheduler_pb2.Choice(sequence_id=1)],
        )
        await router._call.write(scheduler_pb2.ConnectRequest(submit=bad))
        await router.submit(2, [6], 8)
        await router.read_until_finished(1, 2)
        assert router.finished[1].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "prompt_token_ids" in router.finished[1].error.message
        assert router.outputs[2] == expected_output([6], 8)


async def test_what_is_no_submission_ends_the_stream(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        await router._call.write(scheduler_pb2.ConnectRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            # Loads may come before the end.
            await router.read_until_finished(1)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_grammar_reaches_the_worker_as_it_was_sent(tmp_path: Path) -> None:
    """Schedulers do not compile it; a worker does, and its sentence is the sequence's error."""
    worker = FakeWorker()
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        grammar = '{"grammars": [{"lark_grammar": "start: /[0-9]+/"}]}'
        await router.submit(1, [6], 8, grammar=grammar)
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output([6], 8)
        assert worker.grammars == [grammar]
