"""A request goes to the scheduler that can take it soonest, and waits where none can."""

from __future__ import annotations

import asyncio

import pytest

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import (
    GREETING,
    StartRouter,
    answer_text,
    fake_scheduler,
)
from tests.integration.router.fake_scheduler import Answer
from tests.integration.router.test_recovery import pausing


async def test_a_refused_request_is_offered_to_others(start_router: StartRouter) -> None:
    busy = scheduler_pb2.Error(code=8, message="the queue is full", retry_after_ms=1000)
    full = fake_scheduler(lambda submit, choice: Answer([], error=busy))
    free = fake_scheduler()
    free.load.outstanding_tokens = 10**6
    api = await start_router(full, free)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    assert (await api.chat()).json["choices"][0]["message"]["content"] == GREETING
    assert len(full.submits) == 1
    assert free.submits[0].choices[0].attempt == 1
    assert not free.submits[0].choices[0].was_accepted, "its queue's bound would not count"


async def test_the_choices_of_a_refused_request_stay_together(start_router: StartRouter) -> None:
    """The next scheduler gets one prompt, and takes all of them or none."""
    busy = scheduler_pb2.Error(code=8, message="the queue is full", retry_after_ms=1000)
    full, free = fake_scheduler(pausing(0, asyncio.Event())), fake_scheduler()
    free.load.outstanding_tokens = 10**6
    api = await start_router(full, free)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    request = asyncio.create_task(api.complete(n=4, max_tokens=4))
    await full.wait_for(lambda: len(full.submits) == 1)
    refused = [
        scheduler_pb2.Finished(
            sequence_id=choice.sequence_id, attempt=0, reason=sampling_pb2.FINISH_REASON_ERROR, error=busy
        )
        for choice in full.submits[0].choices
    ]
    await full.send(scheduler_pb2.Frame(finished=refused))
    assert len((await request).json["choices"]) == 4
    (submit,) = free.submits
    assert [(choice.choice_index, choice.attempt) for choice in submit.choices] == [(index, 1) for index in range(4)]
    assert full.aborted == []


async def test_refusals_in_a_frame_that_breaks_the_contract_are_not_forgotten(start_router: StartRouter) -> None:
    busy = scheduler_pb2.Error(code=8, message="the queue is full", retry_after_ms=1000)
    broken, other = fake_scheduler(pausing(0, asyncio.Event())), fake_scheduler()
    other.load.outstanding_tokens = 10**6
    api = await start_router(broken, other)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    request = asyncio.create_task(api.complete(n=2, max_tokens=4, prompt_logprobs=0))
    await broken.wait_for(lambda: len(broken.submits) == 1)
    first, second = broken.submits[0].choices
    finished = [
        scheduler_pb2.Finished(sequence_id=second.sequence_id, reason=sampling_pb2.FINISH_REASON_ERROR, error=busy),
        # Without the log probabilities of its prompt.
        scheduler_pb2.Finished(sequence_id=first.sequence_id, reason=sampling_pb2.FINISH_REASON_STOP),
    ]
    await broken.send(scheduler_pb2.Frame(finished=finished))
    assert len((await request).json["choices"]) == 2


async def test_requests_go_to_the_least_loaded(start_router: StartRouter) -> None:
    idle, loaded = fake_scheduler(), fake_scheduler()
    loaded.load.outstanding_tokens = 10**6
    api = await start_router(loaded, idle)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    for _ in range(5):
        await api.chat()
    assert (len(idle.submits), len(loaded.submits)) == (5, 0)


async def test_a_scheduler_without_workers_is_the_last_choice(start_router: StartRouter) -> None:
    idle, loaded = fake_scheduler(), fake_scheduler()
    loaded.load.outstanding_tokens = 10**6
    loaded.load.num_ready_groups = 1
    api = await start_router(idle, loaded)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    await api.chat()
    assert (len(idle.submits), len(loaded.submits)) == (0, 1)


async def test_a_draining_scheduler_gets_nothing_new(start_router: StartRouter) -> None:
    draining, other = fake_scheduler(), fake_scheduler()
    draining.load.is_draining = True
    draining.load.num_ready_groups = 1
    other.load.outstanding_tokens = 10**6
    api = await start_router(draining, other)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    await api.chat()
    assert (len(draining.submits), len(other.submits)) == (0, 1)


async def test_a_scheduler_that_suspects_itself_gets_new_requests_only_if_all_do(start_router: StartRouter) -> None:
    struggling, other = fake_scheduler(), fake_scheduler()
    for scheduler in (struggling, other):
        scheduler.load.num_ready_groups = 1
    struggling.load.is_struggling = True
    other.load.outstanding_tokens = 10**6
    api = await start_router(struggling, other)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    await api.chat()
    assert (len(struggling.submits), len(other.submits)) == (0, 1)
    other.load.is_struggling = True
    while not all(connection.is_struggling for connection in api.router.placement.connections):
        await api.get("GetHealth")
    await api.chat()
    assert (len(struggling.submits), len(other.submits)) == (1, 1)


async def test_a_request_waits_for_the_successor_of_a_draining_scheduler(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    scheduler.load.is_draining = True
    api = await start_router(scheduler)
    while not api.router.placement.connections[0].load.last.is_draining:
        await api.get("GetHealth")
    request = asyncio.create_task(api.chat())
    while not api.router.placement.num_parked:
        await api.get("GetHealth")
    assert not scheduler.submits
    scheduler.load.is_draining = False
    await scheduler.break_streams()
    assert (await request).json["choices"][0]["message"]["content"] == GREETING


@pytest.mark.parametrize("has_workers", [False, True], ids=["on hello", "on load"])
async def test_a_request_waits_after_a_refusal_for_lack_of_a_worker(
    start_router: StartRouter, has_workers: bool
) -> None:
    away = scheduler_pb2.Error(code=14, message="this scheduler is shutting down", retry_after_ms=1000)
    scheduler = fake_scheduler(lambda submit, choice: Answer([], error=away))
    api = await start_router(scheduler)
    request = asyncio.create_task(api.chat())
    while not api.router.placement.num_parked:
        await api.get("GetHealth")
    scheduler.script = answer_text(GREETING)
    if has_workers:
        scheduler.load.num_ready_groups = 1
    else:
        await scheduler.break_streams()
    assert (await request).json["choices"][0]["message"]["content"] == GREETING


async def test_what_was_just_sent_counts_before_it_is_reported(start_router: StartRouter) -> None:
    resume = asyncio.Event()
    schedulers = [fake_scheduler(pausing(0, resume)) for _ in range(2)]
    for scheduler in schedulers:
        scheduler.load.num_blocks = 1  # so that each is busy with a single request
    api = await start_router(*schedulers)
    while not all(connection.is_ready for connection in api.router.placement.connections):
        await api.get("GetHealth")
    requests = [asyncio.create_task(api.chat()) for _ in range(4)]
    for scheduler in schedulers:
        await scheduler.wait_for(lambda scheduler=scheduler: len(scheduler.submits) == 2)  # type: ignore[misc]
    resume.set()
    await asyncio.gather(*requests)
