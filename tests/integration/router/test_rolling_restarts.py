"""Workers and schedulers that are told to stop, as in a rolling update: their sequences go on elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quire.client import AsyncClient
from services.router.main import Router
from services.scheduler.config import SchedulerConfig
from services.scheduler.main import drain
from shared.grpc_server import GrpcServer
from tests.fakes.changing_source import ChangingSource
from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, Script, start_fake_worker
from tests.fakes.stack import RunningScheduler, running_router, running_scheduler, talking_worker
from tests.fakes.waiting import until

CONFIG = SchedulerConfig(worker_timeout=3600.0)
MAX_TOKENS = 40
NUM_STREAMS = 12
Stop = Callable[[int, float], Awaitable[None]]
Start = Callable[[int], Awaitable[None]]


@dataclass
class Stack:
    """A router over schedulers that share workers. Each part can be told to stop and be started again. `listed_workers`
    and `listed_schedulers`: what discovery knows, for tests in which addresses change."""

    directory: Path
    router: Router
    client: AsyncClient
    listed_workers: ChangingSource
    listed_schedulers: ChangingSource
    schedulers: dict[int, RunningScheduler] = field(default_factory=dict)
    workers: dict[int, FakeWorker] = field(default_factory=dict)
    _servers: dict[int, GrpcServer] = field(default_factory=dict)
    _scheduler_exits: dict[int, AsyncExitStack] = field(default_factory=dict)

    def worker_address(self, index: int) -> str:
        return f"unix:{self.directory}/w{index}"

    def scheduler_address(self, index: int) -> str:
        return f"unix:{self.directory}/s{index}"

    async def start_worker(self, index: int, *, gate: asyncio.Semaphore | None = None) -> None:
        script = Script(step_seconds=0.002, gate=gate)
        worker = self.workers[index] = talking_worker(script)
        self._servers[index] = await start_fake_worker(worker, self.worker_address(index))

    async def stop_worker(self, index: int, drain_timeout: float | None) -> None:
        """`drain_timeout`: seconds; None: no limit."""
        leaving = asyncio.ensure_future(self.workers[index].drain())
        await asyncio.wait({leaving}, timeout=drain_timeout)
        leaving.cancel()
        await self._servers[index].stop(0)

    async def start_scheduler(self, index: int, *workers: int) -> None:
        """`workers`: those that it knows from the start. If none is given, it knows those that discovery lists."""
        addresses = [self.worker_address(worker) for worker in workers]
        source = None if workers else self.listed_workers
        exits = self._scheduler_exits[index] = AsyncExitStack()
        scheduler = running_scheduler(self.scheduler_address(index), *addresses, config=CONFIG, source=source)
        self.schedulers[index] = await exits.enter_async_context(scheduler)

    def list_workers(self, *indices: int) -> None:
        self.listed_workers.set(*map(self.worker_address, indices))

    def list_schedulers(self, *indices: int) -> None:
        self.listed_schedulers.set(*map(self.scheduler_address, indices))

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
    """A router that knows two schedulers, which the test starts. Discovery lists three workers."""
    async with AsyncExitStack() as exits:
        workers, schedulers = ChangingSource(), ChangingSource()
        router = await exits.enter_async_context(running_router(f"unix:{directory}/r", source=schedulers, wait=False))
        client = await exits.enter_async_context(AsyncClient(f"unix:{directory}/r", max_retries=0))
        stack = Stack(directory, router, client, workers, schedulers)
        stack.list_workers(0, 1, 2)
        stack.list_schedulers(0, 1)
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
        async with asking(stack):
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


@pytest.mark.parametrize("drain_timeout", [0.0, 10.0])
@pytest.mark.parametrize("order", ["stopped, then unlisted", "unlisted, then stopped"])
async def test_pods_that_are_replaced_lose_nothing(tmp_path: Path, order: str, drain_timeout: float) -> None:
    """In Kubernetes, SIGTERM comes before or after the removal of the address, and the new pod has another address.
    Every worker and scheduler is replaced twice."""
    async with running(tmp_path) as stack:
        workers, schedulers = [0, 1, 2], [0, 1]
        for index in workers:
            await stack.start_worker(index)
        for index in schedulers:
            await stack.start_scheduler(index)
        await until(lambda: sorted(stack.counts) == [1, 2])

        async def replace(pods: list[int], new: int, show: Callable[..., None], stop: Stop, start: Start) -> None:
            """Replaces the oldest of the pods. `show`: makes discovery list these."""
            old = pods.pop(0)
            if order == "unlisted, then stopped":
                show(*pods)
            await stop(old, drain_timeout)
            show(*pods)
            await start(new)
            pods.append(new)
            show(*pods)

        async with asking(stack):
            for new in range(10, 16):
                await replace(workers, new, stack.list_workers, stack.stop_worker, stack.start_worker)
                await until(lambda: sum(stack.counts) == 3)
            for new in range(10, 14):
                await replace(schedulers, new, stack.list_schedulers, stack.stop_scheduler, stack.start_scheduler)
                await until(lambda: sorted(stack.counts) == [1, 2])
        expected = [stack.scheduler_address(index) for index in schedulers]
        await until(lambda: sorted(c.address for c in stack.router.placement.connections) == sorted(expected))
        for scheduler in stack.schedulers.values():
            await until(lambda fleet=scheduler.fleet: len(fleet.groups) == 3)  # type: ignore[misc]


@asynccontextmanager
async def asking(stack: Stack) -> AsyncIterator[None]:
    """Asks all the time from NUM_STREAMS clients. Each answer must be that of an undisturbed run."""
    is_over, num_answers = asyncio.Event(), 0

    async def ask_on(number: int) -> None:
        nonlocal num_answers
        while not is_over.is_set():
            await stack.ask(number)
            num_answers += 1
            number += NUM_STREAMS

    asks = asyncio.gather(*(ask_on(index) for index in range(NUM_STREAMS)))
    yield
    is_over.set()
    await asks
    print(f"{num_answers} answers, {stack.router.placement.num_resubmissions} resubmissions")
