"""Workers and schedulers that are stopped in order, as in a rolling update: their sequences go on elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quire.client import AsyncClient
from services.router.main import Router
from services.scheduler.config import SchedulerConfig
from services.scheduler.main import drain
from shared.grpc_server import GrpcServer
from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, Script, start_fake_worker
from tests.fakes.stack import RunningScheduler, running_router, running_scheduler, talking_worker
from tests.fakes.waiting import until

CONFIG = SchedulerConfig(worker_timeout=3600.0)
MAX_TOKENS = 40
NUM_STREAMS = 12


@dataclass
class Stack:
    """A router over schedulers that share workers. Each part can be stopped in order and started again."""

    directory: Path
    router: Router
    client: AsyncClient
    schedulers: dict[int, RunningScheduler] = field(default_factory=dict)
    workers: dict[int, FakeWorker] = field(default_factory=dict)
    _servers: dict[int, GrpcServer] = field(default_factory=dict)
    _scheduler_exits: dict[int, AsyncExitStack] = field(default_factory=dict)

    @property
    def worker_addresses(self) -> list[str]:
        return [f"unix:{self.directory}/w{index}" for index in range(3)]

    async def start_worker(self, index: int, *, gate: asyncio.Semaphore | None = None) -> None:
        script = Script(step_seconds=0.002, gate=gate)
        worker = self.workers[index] = talking_worker(script)
        self._servers[index] = await start_fake_worker(worker, self.worker_addresses[index])

    async def stop_worker(self, index: int, drain_timeout: float | None) -> None:
        """`drain_timeout`: seconds; None: no limit."""
        leaving = asyncio.ensure_future(self.workers[index].drain())
        await asyncio.wait({leaving}, timeout=drain_timeout)
        leaving.cancel()
        await self._servers[index].stop(0)

    async def start_scheduler(self, index: int, *workers: int) -> None:
        addresses = [self.worker_addresses[worker] for worker in workers or range(3)]
        exits = self._scheduler_exits[index] = AsyncExitStack()
        scheduler = running_scheduler(f"unix:{self.directory}/s{index}", *addresses, config=CONFIG)
        self.schedulers[index] = await exits.enter_async_context(scheduler)

    async def stop_scheduler(self, index: int, drain_timeout: float) -> None:
        scheduler = self.schedulers.pop(index)
        await drain(scheduler.servicer, scheduler.server, drain_timeout)
        await self._scheduler_exits.pop(index).aclose()

    async def close(self) -> None:
        for exits in self._scheduler_exits.values():
            await exits.aclose()
        await asyncio.gather(*(server.stop(0) for server in self._servers.values()))

    @property
    def counts(self) -> list[int]:
        return [scheduler.fleet.num_ready for scheduler in self.schedulers.values()]

    async def ask(self, number: int) -> None:
        """Asserts that a request gets the tokens of an undisturbed run."""
        prompt = [number % 200 + 3, 7]
        answer = await self.client.generate(prompt, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
        assert list(answer.choices[0].token_ids) == expected_output(prompt, MAX_TOKENS, ())

    async def ask_all(self, gates: list[asyncio.Semaphore]) -> list[asyncio.Future[None]]:
        """Starts requests that cannot end before the gates open, and waits until all of them run."""
        asks: list[asyncio.Future[None]] = [asyncio.ensure_future(self.ask(index)) for index in range(NUM_STREAMS)]
        await until(lambda: sum(scheduler.num_unfinished for scheduler in self.schedulers.values()) == NUM_STREAMS)
        for gate in gates:
            for _ in range(4):
                gate.release()
        return asks

    def open(self, gates: list[asyncio.Semaphore]) -> None:
        for gate in gates:
            for _ in range(10_000):
                gate.release()


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Stack]:
    """A router that knows two schedulers, which the test starts."""
    async with AsyncExitStack() as exits:
        addresses = [f"unix:{directory}/s{index}" for index in range(2)]
        router = await exits.enter_async_context(running_router(f"unix:{directory}/r", *addresses, wait=False))
        client = await exits.enter_async_context(AsyncClient(f"unix:{directory}/r", max_retries=0))
        stack = Stack(directory, router, client)
        exits.push_async_callback(stack.close)
        yield stack


async def test_sequences_of_a_worker_that_stops_go_on_at_its_scheduler_s_other_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gates = [asyncio.Semaphore(0), asyncio.Semaphore(0)]
    async with running(tmp_path) as stack:
        for index, gate in enumerate(gates):
            await stack.start_worker(index, gate=gate)
        await stack.start_scheduler(0, 0, 1)
        await until(lambda: stack.counts == [2])
        asks = await stack.ask_all(gates)
        assert all(group.num_unfinished for group in stack.schedulers[0].groups)
        # The worker waits without a limit: the scheduler leaves it although its sequences are not complete.
        await stack.stop_worker(0, None)
        assert not any(ask.done() for ask in asks)
        assert "is stopping" in caplog.text
        assert "lost worker" not in caplog.text, "nothing was lost"
        assert stack.schedulers[0].fleet.num_lost == 0
        stack.open(gates)
        await asyncio.gather(*asks)
        assert stack.router.placement.num_resubmissions == 0


async def test_sequences_of_a_scheduler_s_only_worker_that_stops_go_on_at_another_scheduler(tmp_path: Path) -> None:
    gates = [asyncio.Semaphore(0), asyncio.Semaphore(0)]
    async with running(tmp_path) as stack:
        for index, gate in enumerate(gates):
            await stack.start_worker(index, gate=gate)
            await stack.start_scheduler(index, index)
        await until(lambda: all(connection.has_workers for connection in stack.router.placement.connections))
        asks = await stack.ask_all(gates)
        num_moved = stack.schedulers[0].num_unfinished
        assert num_moved
        await stack.stop_worker(0, None)
        assert stack.router.placement.num_resubmissions == num_moved
        stack.open(gates)
        await asyncio.gather(*asks)


async def test_sequences_of_the_only_worker_end_before_it_stops(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    async with running(tmp_path) as stack:
        await stack.start_worker(0, gate=gate)
        await stack.start_scheduler(0, 0)
        await until(lambda: stack.counts == [1])
        asks = await stack.ask_all([gate])
        stopping = asyncio.ensure_future(stack.stop_worker(0, None))
        await until(lambda: stack.counts == [0])
        assert not stopping.done()
        stack.open([gate])
        await asyncio.gather(*asks)
        await stopping


async def test_sequences_that_outlast_the_drain_of_the_only_worker_go_on_when_it_is_back(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    async with running(tmp_path) as stack:
        await stack.start_worker(0, gate=gate)
        await stack.start_scheduler(0, 0)
        await until(lambda: stack.counts == [1])
        asks = await stack.ask_all([gate])
        await stack.stop_worker(0, 0.01)
        await until(lambda: not any(group.is_claimed for group in stack.schedulers[0].groups))
        cores = [group.core for group in stack.schedulers[0].groups if group.core is not None]
        assert not any(core.suspects() for core in cores), "the stop of a worker counts against no sequence"
        await stack.start_worker(0)
        await asyncio.gather(*asks)


async def test_sequences_that_outlast_a_scheduler_s_drain_go_on_at_another_one(tmp_path: Path) -> None:
    gates = [asyncio.Semaphore(0), asyncio.Semaphore(0)]
    async with running(tmp_path) as stack:
        for index, gate in enumerate(gates):
            await stack.start_worker(index, gate=gate)
            await stack.start_scheduler(index, index)
        await until(lambda: all(connection.has_workers for connection in stack.router.placement.connections))
        asks = await stack.ask_all(gates)
        num_moved = stack.schedulers[0].num_unfinished
        await stack.stop_scheduler(0, 0.0)
        await until(lambda: stack.router.placement.num_resubmissions == num_moved)
        moved = [sequence for c in stack.router.placement.connections for sequence in c.sequences if sequence.attempt]
        assert [sequence.num_losses for sequence in moved] == [0] * num_moved, "it counts against no sequence"
        stack.open(gates)
        await asyncio.gather(*asks)


@pytest.mark.parametrize("drain_timeout", [0.0, 10.0])
async def test_a_rolling_restart_of_every_worker_and_scheduler_twice_loses_nothing(
    tmp_path: Path, drain_timeout: float
) -> None:
    async with running(tmp_path) as stack:
        for index in range(3):
            await stack.start_worker(index)
        for index in range(2):
            await stack.start_scheduler(index)
        await until(lambda: sorted(stack.counts) == [1, 2])
        is_over, num_answers = asyncio.Event(), 0

        async def ask_on(number: int) -> None:
            nonlocal num_answers
            while not is_over.is_set():
                await stack.ask(number)
                num_answers += 1
                number += NUM_STREAMS

        asking = asyncio.gather(*(ask_on(index) for index in range(NUM_STREAMS)))
        for _ in range(2):
            for index in range(3):
                await stack.stop_worker(index, drain_timeout)
                await stack.start_worker(index)
                await until(lambda: sum(stack.counts) == 3)
            for index in range(2):
                await stack.stop_scheduler(index, drain_timeout)
                await until(lambda: stack.counts == [3])
                await stack.start_scheduler(index)
                await until(lambda: sorted(stack.counts) == [1, 2])
        is_over.set()
        await asking
        print(f"{num_answers} answers, {stack.router.placement.num_resubmissions} resubmissions")
