"""Sequences that stand still at a scheduler that suspects itself, because several of its workers are silent at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire.client import AsyncClient
from quire.scheduler.v1 import scheduler_pb2
from services.router.main import Router
from shared.metrics import registry_of
from tests.fakes.fake_worker import start_fake_worker
from tests.fakes.stack import running_router, running_scheduler, talking_worker
from tests.fakes.waiting import until
from tests.integration.router.conftest import GREETING, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, unpack
from tests.integration.router.test_lost_workers import CONFIG, Stack, loads_from, router_beside, streams_under_way
from tests.integration.router.test_recovery import IDS, pausing, read_rest, read_until, stream, text_in


async def test_streams_of_workers_that_all_fall_silent_go_on_at_another_scheduler(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler cannot tell whether its workers or it itself is the cause, and gives up none of them for long."""
    async with AsyncExitStack() as stack:
        workers = [talking_worker() for _ in range(3)]
        servers = [await start_fake_worker(one, f"unix:{tmp_path}/w{i}") for i, one in enumerate(workers)]
        schedulers = [
            await stack.enter_async_context(
                running_scheduler(f"unix:{tmp_path}/s{i}", *(f"unix:{tmp_path}/w{j}" for j in of), config=CONFIG)
            )
            for i, of in enumerate([(0, 1), (2,)])
        ]
        groups = schedulers[0].groups
        router = await stack.enter_async_context(
            running_router(f"unix:{tmp_path}/r", *(one.address for one in schedulers))
        )
        await until(lambda: all(connection.has_workers for connection in router.placement.connections))
        await until(lambda: all(one.ready.is_set() for one in groups))
        client = await stack.enter_async_context(AsyncClient(f"unix:{tmp_path}/r", max_retries=0))
        fleet = Stack(tmp_path, router, client, schedulers, workers, servers)
        stack.callback(lambda: [asyncio.ensure_future(server.stop(0)) for server in servers])
        tasks = await streams_under_way(fleet)
        num_moved = schedulers[0].num_unfinished
        assert all(one.num_unfinished for one in groups)
        fleet.open_gates(workers[2])
        for one in groups:
            patience = one.steps._patience
            # The first step of its kind would get 30 s.
            patience._known |= {kind for kind, _ in patience._in_flight}
            patience._least_s = 1.0
        await asyncio.gather(*tasks)
        fleet.check()
        assert "hears nothing from its workers" in caplog.text
        assert router.placement.num_resubmissions >= num_moved
        fleet.open_gates()


async def test_a_sequence_that_stands_still_moves_to_a_scheduler_that_can_run_it(start_router: StartRouter) -> None:
    first, other = fake_scheduler(pausing(4, asyncio.Event())), fake_scheduler()
    api = await router_beside(start_router, first, other)
    call = await stream(api, n=2)
    messages = await read_until(call, 1)
    (submit,) = first.submits
    ids = [choice.sequence_id for choice in submit.choices]

    async def stall(*sequence_ids: int, attempt: int = 0) -> None:
        stalls = [scheduler_pb2.Stall(sequence_id=sequence_id, attempt=attempt) for sequence_id in sequence_ids]
        await first.send(scheduler_pb2.Frame(stalls=stalls))
        await loads_from(api, 0, 2)

    await stall(*ids)
    other.load.num_ready_groups = 1
    other.load.is_slow = True
    await loads_from(api, 1, 2)
    await stall(*ids)
    other.load.is_slow = False
    await loads_from(api, 1, 2)
    # Of an attempt that is over, and of a sequence that nobody knows.
    await stall(*ids, attempt=7)
    await stall(10_000)
    assert first.aborted == []
    assert other.submits == []
    await stall(ids[1], ids[1])
    await other.wait_for(lambda: len(other.submits) == 1)
    await stall(ids[0])
    messages += await read_rest(call)
    assert len(text_in(messages)) == 2 * len(GREETING)
    assert [choice.choice_index for submit in other.submits for choice in submit.choices] == [1, 0]
    for moved in other.submits:
        assert [choice.attempt for choice in moved.choices] == [1]
        assert [choice.was_accepted for choice in moved.choices] == [True]
        assert [unpack(choice.output_token_ids) for choice in moved.choices] == [IDS[:4]]
    await first.wait_for(lambda: set(first.aborted) == set(ids))
    assert recovered_streams(api.router) == 2


async def test_a_sequence_moves_off_silent_workers_once_for_each_new_token_and_pause(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would move to and fro between schedulers that are all slow."""
    monkeypatch.setattr("shared.stall_moves.PAUSE_SECONDS", 3600.0)
    resume = asyncio.Event()
    schedulers = [fake_scheduler(lambda _, __: Answer(IDS, pause_after=4, resume=resume)) for _ in range(2)]
    schedulers[1].load.num_ready_groups = 1
    api = await router_beside(start_router, *schedulers)
    call = await stream(api)
    messages = await read_until(call, 1)
    (sequence,) = (one for connection in api.router.placement.connections for one in connection.sequences)
    here, there = sorted(schedulers, key=lambda scheduler: -len(scheduler.submits))

    async def stall(scheduler: FakeScheduler) -> None:
        (choice,) = scheduler.submits[-1].choices
        stall = scheduler_pb2.Stall(sequence_id=choice.sequence_id, attempt=choice.attempt)
        await scheduler.send(scheduler_pb2.Frame(stalls=[stall]))
        await loads_from(api, schedulers.index(scheduler), 2)

    await stall(here)
    await there.wait_for(lambda: len(there.submits) == 1)
    await stall(there)
    assert there.aborted == []
    # As if it had a new token since; then, as if much time had passed; then, as if both.
    sequence.stall_moves.num_tokens -= 1
    await stall(there)
    assert there.aborted == []
    sequence.stall_moves.num_tokens += 1
    sequence.stall_moves.last_at -= 3600.0
    await stall(there)
    assert there.aborted == []
    sequence.stall_moves.num_tokens -= 1
    await stall(there)
    await there.wait_for(lambda: len(there.aborted) == 1)
    await here.wait_for(lambda: len(here.submits) == 2)
    resume.set()
    messages += await read_rest(call)
    assert text_in(messages) == GREETING


def recovered_streams(router: Router) -> float:
    samples = (sample for metric in registry_of(router.collector).collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name == "quire:streams_recovered_total")
