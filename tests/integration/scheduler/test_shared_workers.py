"""Several schedulers that can claim the same workers share them equally."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.client import AsyncClient
from services.scheduler.config import SchedulerConfig
from shared.config import ConfigError
from shared.grpc_server import GrpcServer
from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.stack import RunningScheduler, running_router, running_scheduler, talking_worker
from tests.fakes.waiting import until


@dataclass(slots=True)
class Shared:
    """Schedulers, and the workers that all of them know."""

    directory: Path
    addresses: list[str]
    workers: list[FakeWorker]
    servers: list[GrpcServer]


@asynccontextmanager
async def shared_workers(directory: Path, number: int, versions: Sequence[str] = ("",)) -> AsyncIterator[Shared]:
    """`versions`: of their model; the workers have them in turn."""
    addresses = [f"unix:{directory}/w{index}" for index in range(number)]
    workers = [talking_worker(version=versions[index % len(versions)]) for index in range(number)]
    servers = [await start_fake_worker(worker, address) for worker, address in zip(workers, addresses, strict=True)]
    try:
        yield Shared(directory, addresses, workers, servers)
    finally:
        await asyncio.gather(*(server.stop(0) for server in servers))


def num_ready(scheduler: RunningScheduler) -> int:
    return scheduler.fleet.num_ready


@pytest.mark.parametrize(("num_schedulers", "num_workers"), [(2, 4), (3, 7), (2, 1)])
async def test_schedulers_that_start_one_after_another_share_the_workers(
    tmp_path: Path, num_schedulers: int, num_workers: int
) -> None:
    async with shared_workers(tmp_path, num_workers) as shared, AsyncExitStack() as stack:
        schedulers: list[RunningScheduler] = []
        for index in range(num_schedulers):
            since = time.monotonic()
            schedulers.append(
                await stack.enter_async_context(running_scheduler(f"unix:{tmp_path}/s{index}", *shared.addresses))
            )
            await until(
                lambda: (
                    sum(map(num_ready, schedulers)) == num_workers
                    and max(map(num_ready, schedulers)) - min(map(num_ready, schedulers)) <= 1
                )
            )
            print(f"{len(schedulers)} schedulers, {num_workers} workers: equal after {time.monotonic() - since:.2f} s")


async def test_schedulers_told_their_model_leave_the_workers_of_others_alone(tmp_path: Path) -> None:
    async with shared_workers(tmp_path, 4, versions=("", "2")) as shared, AsyncExitStack() as stack:
        for index, model in enumerate(("fake@2", "fake", "other")):
            config = SchedulerConfig(worker_model=model)
            running = running_scheduler(f"unix:{tmp_path}/s{index}", *shared.addresses, config=config)
            scheduler = await stack.enter_async_context(running)
            if model == "other":
                await until(lambda: all("other" in worker.claimed_for for worker in shared.workers))
                assert num_ready(scheduler) == 0
            else:
                await until(lambda: num_ready(scheduler) == 2)  # noqa: B023 - called in this turn of the loop
                assert "@".join(filter(None, scheduler.fleet.model.name_and_version)) == model


@pytest.mark.parametrize("model", ["@2", "fake@", "a@b@2"])
def test_a_model_without_a_name_or_with_an_empty_version_is_refused(model: str) -> None:
    """Workers would take the claim, and the scheduler would then drop them."""
    with pytest.raises(ConfigError, match="--worker-model"):
        SchedulerConfig(worker_model=model)


async def test_one_of_two_schedulers_is_left_and_takes_all_workers(tmp_path: Path) -> None:
    async with (
        shared_workers(tmp_path, 4) as shared,
        running_scheduler(f"unix:{tmp_path}/s0", *shared.addresses) as first,
    ):
        async with running_scheduler(f"unix:{tmp_path}/s1", *shared.addresses) as second:
            await until(lambda: (num_ready(first), num_ready(second)) == (2, 2))
        since = time.monotonic()
        await until(lambda: num_ready(first) == 4)
        print(f"workers without a scheduler were taken after {time.monotonic() - since:.2f} s")


async def test_streams_on_workers_that_are_given_away_go_on_with_the_same_tokens(tmp_path: Path) -> None:
    async with (
        shared_workers(tmp_path, 4) as shared,
        running_scheduler(f"unix:{tmp_path}/s0", *shared.addresses) as first,
        running_router(f"unix:{tmp_path}/r", first.address) as router,
        AsyncClient(f"unix:{tmp_path}/r", max_retries=0) as client,
    ):
        await until(lambda: num_ready(first) == 4)
        for worker in shared.workers:
            worker.script.gate = asyncio.Semaphore(3)
        asks = [client.generate([index + 3, 7], temperature=0, max_tokens=30, ignore_eos=True) for index in range(24)]
        answers = [asyncio.ensure_future(ask) for ask in asks]
        await until(lambda: all(worker.steps >= 4 for worker in shared.workers))
        assert all(group.num_unfinished for group in first.groups)
        async with running_scheduler(f"unix:{tmp_path}/s1", *shared.addresses) as second:
            await until(lambda: (num_ready(first), num_ready(second)) == (2, 2))
            assert not any(group.num_unfinished for group in first.groups if not group.ready.is_set())
            for worker in shared.workers:
                gate, worker.script.gate = worker.script.gate, None
                for _ in range(100):
                    assert gate is not None
                    gate.release()
            for index, answer in enumerate(await asyncio.gather(*answers)):
                assert list(answer.choices[0].token_ids) == expected_output([index + 3, 7], 30, ())
        assert router.placement.num_resubmissions == 0, "the scheduler's other workers have taken them over"
