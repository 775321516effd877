"""Workers that discovery adds and removes while the scheduler runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from services.scheduler.config import SchedulerConfig
from services.scheduler.metrics import FleetCollector
from shared.metrics import registry_of
from tests.fakes.changing_source import ChangingSource
from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, Script, start_fake_worker
from tests.fakes.waiting import until
from tests.integration.scheduler.driver import Router, Stack, running

PATIENT = SchedulerConfig(worker_timeout=3600.0)


def addresses(stack: Stack) -> list[str]:
    return [group.address for group in stack.fleet.groups]


def num_ready(stack: Stack) -> int:
    return sum(group.ready.is_set() for group in stack.fleet.groups)


async def run_at_both(stack: Stack, router: Router, first_id: int) -> None:
    for index in range(first_id, first_id + 12):
        await router.submit(index, [index + 1], 20)
    await router.read_until_finished(*range(first_id, first_id + 12))
    for index in range(first_id, first_id + 12):
        assert router.outputs[index] == expected_output([index + 1], 20)


async def test_a_worker_that_is_discovered_later_is_used(tmp_path: Path) -> None:
    first, second = f"unix:{tmp_path}/w0", f"unix:{tmp_path}/second"
    source, added = ChangingSource(first), FakeWorker()
    async with running(tmp_path, FakeWorker(), source=source) as stack:
        router = await stack.router()
        server = await start_fake_worker(added, second)
        since = time.monotonic()
        source.set(first, second)
        await until(lambda: num_ready(stack) == 2)
        print(f"from discovery to the claim: {time.monotonic() - since:.3f} s")
        await run_at_both(stack, router, 0)
        assert added.steps
        await server.stop(0)


async def test_routers_that_wait_are_greeted_when_the_first_worker_is_discovered(tmp_path: Path) -> None:
    source = ChangingSource()
    async with running(tmp_path, FakeWorker(), source=source) as stack:
        connecting = asyncio.create_task(stack.router())
        source.set(f"unix:{tmp_path}/w0")
        router = await connecting
        await router.submit(1, [5], 10)
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output([5], 10)


async def test_a_missing_worker_is_used_as_long_as_it_is_claimed(tmp_path: Path) -> None:
    workers = [FakeWorker(), FakeWorker()]
    both = [f"unix:{tmp_path}/w{index}" for index in range(2)]
    source = ChangingSource(*both)
    async with running(tmp_path, *workers, source=source) as stack:
        router = await stack.router()
        await until(lambda: num_ready(stack) == 2)
        source.set(both[0])
        source.set(is_stale=True)
        await run_at_both(stack, router, 0)
        assert all(worker.steps for worker in workers)
        assert num_ready(stack) == 2
        await stack.worker_servers[1].stop(0)
        await until(lambda: addresses(stack) == both[:1])
        await run_at_both(stack, router, 100)


async def test_sequences_of_a_removed_worker_go_on_at_the_others(tmp_path: Path) -> None:
    leaving = FakeWorker(script=Script(gate=asyncio.Semaphore(2)))
    both = [f"unix:{tmp_path}/w{index}" for index in range(2)]
    source = ChangingSource(both[0])
    async with running(tmp_path, leaving, FakeWorker(), source=source, config=PATIENT) as stack:
        router = await stack.router()
        for index in range(6):
            await router.submit(index, [index + 1], 20)
        await until(lambda: leaving.steps >= 2)
        source.set()
        await stack.worker_servers[0].stop(0)
        # No other worker is there yet, so the sequences wait in the group of the worker that is gone.
        await until(lambda: num_ready(stack) == 0)
        assert addresses(stack) == both[:1]
        source.set(both[1])
        await router.read_until_finished(*range(6))
        for index in range(6):
            assert router.outputs[index] == expected_output([index + 1], 20)
        await until(lambda: addresses(stack) == both[1:])


async def test_a_missing_worker_that_was_never_claimed_is_forgotten_and_found_again(tmp_path: Path) -> None:
    first, late = f"unix:{tmp_path}/w0", f"unix:{tmp_path}/late"
    source = ChangingSource(first, late)
    async with running(tmp_path, FakeWorker(), source=source) as stack:
        await until(lambda: num_ready(stack) == 1 and len(addresses(stack)) == 2)
        source.set(first)
        await until(lambda: addresses(stack) == [first])
        server = await start_fake_worker(FakeWorker(), late)
        source.set(first, late)
        await until(lambda: num_ready(stack) == 2)
        await server.stop(0)


async def test_metrics_count_on_when_a_worker_is_replaced_by_one_at_another_address(tmp_path: Path) -> None:
    both = [f"unix:{tmp_path}/w{index}" for index in range(2)]
    source = ChangingSource(both[0])
    async with running(tmp_path, FakeWorker(), FakeWorker(), source=source) as stack:
        metrics = registry_of(FleetCollector(stack.fleet))

        def num_steps(engine: int) -> float | None:
            labels = {"model_name": "fake", "engine": str(engine)}
            return metrics.get_sample_value("vllm:iteration_tokens_total_count", labels)

        router = await stack.router()
        await run_at_both(stack, router, 0)
        before, stats = num_steps(0), await stack.stats()
        assert before is not None
        source.set()
        await stack.worker_servers[0].stop(0)
        await until(lambda: addresses(stack) == [])
        assert num_steps(0) == before
        assert (await stack.stats()).load.num_generation_tokens == stats.load.num_generation_tokens
        source.set(both[1])
        await until(lambda: num_ready(stack) == 1)
        await run_at_both(stack, router, 100)
        after = num_steps(0)
        assert after is not None
        assert after > before
        assert num_steps(1) is None, "the new worker has the number of the one that is gone"
