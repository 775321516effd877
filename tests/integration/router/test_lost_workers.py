"""Schedulers whose last worker is gone: their sequences go on at another scheduler, or wait where there is none.

Real schedulers over fake workers. `worker_timeout` is an hour, so that nothing here can end by it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.client import AsyncClient, QuireError
from quire.scheduler.v1 import scheduler_pb2
from services.router.main import Router
from services.scheduler.config import SchedulerConfig
from shared.grpc_server import CHANNEL_OPTIONS, GrpcServer
from shared.metrics import registry_of
from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.stack import RunningScheduler, running_router, running_scheduler, talking_worker
from tests.fakes.waiting import HANG_S, until
from tests.integration.router.conftest import GREETING, Api, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, Script, unpack
from tests.integration.router.test_recovery import IDS, pausing, read_rest, read_until, stream, text_in

ROOT = Path(__file__).parents[3]
CONFIG = SchedulerConfig(worker_timeout=3600.0)
NUM_STREAMS = 24
MAX_TOKENS = 40
# Steps that a gated worker may take before a test opens its gate: too few for a stream to end, however slow the
# machine is.
MOST_STEPS = MAX_TOKENS - 10
DEADLY = 99
INVALID_ARGUMENT, UNAVAILABLE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE


@dataclass(slots=True)
class Stack:
    """Schedulers with a worker each, and a router over them."""

    directory: Path
    router: Router
    client: AsyncClient
    schedulers: list[RunningScheduler]
    workers: list[FakeWorker]
    servers: list[GrpcServer]
    outputs: dict[int, list[int]] = field(default_factory=dict)

    async def ask(self, index: int) -> list[int]:
        """One of the streams. Its output is seen while it grows."""
        output = self.outputs[index] = []
        prompt = [index + 3, 7]
        async for delta in self.client.stream_generate(prompt, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True):
            output += delta.token_ids
        return output

    def check(self) -> None:
        for index, output in self.outputs.items():
            assert output == expected_output([index + 3, 7], MAX_TOKENS, ()), index

    async def lose_worker(self, index: int) -> None:
        await self.servers[index].stop(0)
        await until(lambda: not self.schedulers[index].groups[0].ready.is_set())

    async def bring_worker_back(self, index: int) -> None:
        self.workers[index].script.gate = None
        self.servers[index] = await start_fake_worker(self.workers[index], f"unix:{self.directory}/w{index}")

    def open_gates(self, *workers: FakeWorker) -> None:
        """Of some workers; of all, if none is given."""
        for worker in workers or self.workers:
            gate, worker.script.gate = worker.script.gate, None
            for _ in range(100 if gate is not None else 0):
                gate.release()  # type: ignore[union-attr]


@asynccontextmanager
async def running(directory: Path, num_schedulers: int) -> AsyncIterator[Stack]:
    async with AsyncExitStack() as stack:
        workers = [talking_worker() for _ in range(num_schedulers)]
        servers, schedulers = [], []
        for index, worker in enumerate(workers):
            servers.append(await start_fake_worker(worker, f"unix:{directory}/w{index}"))
            schedulers.append(
                await stack.enter_async_context(
                    running_scheduler(f"unix:{directory}/s{index}", f"unix:{directory}/w{index}", config=CONFIG)
                )
            )
        addresses = [scheduler.address for scheduler in schedulers]
        router = await stack.enter_async_context(running_router(f"unix:{directory}/r", *addresses))
        await until(lambda: all(connection.has_workers for connection in router.placement.connections))
        client = await stack.enter_async_context(AsyncClient(f"unix:{directory}/r", max_retries=0))
        running = Stack(directory, router, client, schedulers, workers, servers)
        stack.callback(lambda: [asyncio.ensure_future(server.stop(0)) for server in running.servers])
        yield running


async def streams_under_way(stack: Stack, step: Callable[[], object] = lambda: None) -> list[asyncio.Task[list[int]]]:
    """All have begun, none can end before the gates open, and every scheduler has some. `step`: lets a step of a worker
    through that is not in the stack.
    """
    for worker in stack.workers:
        worker.script.gate = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(stack.ask(index)) for index in range(NUM_STREAMS)]
    await until(lambda: sum(scheduler.num_unfinished for scheduler in stack.schedulers) == NUM_STREAMS)
    num_steps = 0
    while not all(stack.outputs.get(index) for index in range(NUM_STREAMS)):
        if num_steps < MOST_STEPS:
            num_steps += 1
            step()
            for worker in stack.workers:
                assert worker.script.gate is not None
                worker.script.gate.release()
        await asyncio.sleep(0.01)
    assert all(scheduler.num_unfinished for scheduler in stack.schedulers)
    assert not any(task.done() for task in tasks)
    return tasks


async def test_streams_go_on_at_the_scheduler_that_has_a_worker(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as stack:
        tasks = await streams_under_way(stack)
        num_moved = stack.schedulers[0].num_unfinished
        await stack.lose_worker(0)
        await until(lambda: stack.schedulers[0].num_unfinished == 0)
        assert stack.router.placement.num_resubmissions == num_moved
        stack.open_gates()
        await asyncio.gather(*tasks)
        stack.check()


def schedulers_ready(router: Router) -> list[float]:
    """The metric of that name, by model."""
    samples = (sample for metric in registry_of(router.collector).collect() for sample in metric.samples)
    return [sample.value for sample in samples if sample.name == "quire:schedulers_ready"]


async def test_streams_wait_for_the_worker_where_no_scheduler_has_one(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as stack:
        tasks = await streams_under_way(stack)
        assert schedulers_ready(stack.router) == [1.0]
        await stack.lose_worker(0)
        await until(lambda: stack.router.placement.connections[0].lacks_workers)
        assert schedulers_ready(stack.router) == [0.0]
        assert stack.schedulers[0].num_unfinished == NUM_STREAMS
        await stack.bring_worker_back(0)
        await asyncio.gather(*tasks)
        stack.check()
        assert stack.router.placement.num_resubmissions == 0


async def router_beside(start_router: StartRouter, *schedulers: FakeScheduler) -> Api:
    """A router that knows how many workers each scheduler has. The first has one."""
    schedulers[0].load.num_ready_groups = 1
    api: Api = await start_router(*schedulers)
    await until(lambda: all(connection.load.has_report for connection in api.router.placement.connections))
    return api


async def test_a_scheduler_that_struggles_still_takes_over_from_one_without_workers(start_router: StartRouter) -> None:
    """It may have many workers that work."""
    first, other = fake_scheduler(pausing(4, asyncio.Event())), fake_scheduler()
    api = await router_beside(start_router, first, other)
    call = await stream(api)
    messages = await read_until(call, 1)
    other.load.num_ready_groups = 14
    other.load.is_struggling = other.load.is_slow = True
    await loads_from(api, 1, 2)
    first.load.num_ready_groups = 0
    messages += await read_rest(call)
    assert text_in(messages) == GREETING


async def test_when_all_workers_are_gone_the_first_that_comes_back_takes_everything(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as stack:
        tasks = await streams_under_way(stack)
        await asyncio.gather(stack.lose_worker(0), stack.lose_worker(1))
        await until(lambda: all(connection.lacks_workers for connection in stack.router.placement.connections))
        await stack.bring_worker_back(1)
        await asyncio.gather(*tasks)
        stack.check()


async def test_of_two_groups_of_one_scheduler_that_die_together_one_comes_back(tmp_path: Path) -> None:
    """Sequences that wait for the group that stays away go on at the one that is back."""
    workers = [talking_worker(), talking_worker()]
    addresses = [f"unix:{tmp_path}/w{index}" for index in range(2)]
    servers = [await start_fake_worker(worker, address) for worker, address in zip(workers, addresses, strict=True)]
    async with (
        running_scheduler(f"unix:{tmp_path}/s0", *addresses, config=CONFIG) as scheduler,
        running_router(f"unix:{tmp_path}/r", scheduler.address) as router,
        AsyncClient(f"unix:{tmp_path}/r", max_retries=0) as client,
    ):
        groups = scheduler.groups
        await until(lambda: all(engine.ready.is_set() for engine in groups))
        stack = Stack(tmp_path, router, client, [scheduler], workers, servers)
        tasks = await streams_under_way(stack)
        assert all(engine.num_unfinished for engine in groups)
        await asyncio.gather(*(server.stop(0) for server in servers))
        await until(lambda: not any(engine.ready.is_set() for engine in groups))
        assert groups[1].num_unfinished + groups[0].num_unfinished == NUM_STREAMS
        back = next(index for index in range(2) if groups[1 - index].num_unfinished)
        await stack.bring_worker_back(back)
        await asyncio.gather(*tasks)
        stack.check()
        await stack.servers[back].stop(0)


# Each byte of its standard input lets one step through; all of them, once that is closed.
GATED_WORKER = """
import asyncio, sys, threading
from tests.fakes.fake_worker import Script, start_fake_worker
from tests.fakes.stack import talking_worker

async def main():
    script = Script(gate=asyncio.Semaphore(0))
    loop, gate = asyncio.get_running_loop(), script.gate

    def read():
        while sys.stdin.buffer.read(1):
            loop.call_soon_threadsafe(gate.release)
        script.gate = None
        for _ in range(100):
            loop.call_soon_threadsafe(gate.release)

    threading.Thread(target=read, daemon=True).start()
    server = await start_fake_worker(talking_worker(script), sys.argv[1])
    await server.server.wait_for_termination()

asyncio.run(main())
"""


@contextmanager
def worker_process(address: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", GATED_WORKER, address], stdin=subprocess.PIPE, cwd=ROOT, bufsize=0
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_streams_of_a_worker_that_stands_still_are_moved_and_it_is_claimed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Measured with grpc 1.85: the ping timeout, not the keepalive timeout, decides when a silent peer is given up.
    impatient = dict(CHANNEL_OPTIONS)
    for name in ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
        impatient[name] = 500
    monkeypatch.setattr("shared.transport.grpc_channel.CHANNEL_OPTIONS", list(impatient.items()))
    async with running(tmp_path, 1) as stack:
        with worker_process(f"unix:{tmp_path}/stopped") as process:
            async with running_scheduler(f"unix:{tmp_path}/s1", f"unix:{tmp_path}/stopped", config=CONFIG) as other:
                schedulers = (stack.schedulers[0].address, other.address)
                async with (
                    running_router(f"unix:{tmp_path}/r2", *schedulers) as router,
                    AsyncClient(f"unix:{tmp_path}/r2", max_retries=0) as client,
                ):
                    await until(lambda: all(connection.has_workers for connection in router.placement.connections))
                    stack.schedulers.append(other)
                    stack.client = client
                    assert process.stdin is not None
                    tasks = await streams_under_way(stack, partial(process.stdin.write, b"."))
                    num_moved = other.num_unfinished
                    process.send_signal(signal.SIGSTOP)
                    await until(lambda: other.num_unfinished == 0)
                    # More, if a slow machine lost a ping of a healthy part, too.
                    assert router.placement.num_resubmissions >= num_moved
                    stack.open_gates()
                    await asyncio.gather(*tasks)
                    process.stdin.close()
                    process.send_signal(signal.SIGCONT)
                    await until(other.groups[0].ready.is_set)
                    await asyncio.gather(*(stack.ask(NUM_STREAMS + index) for index in range(NUM_STREAMS)))
                    stack.check()


async def test_a_worker_that_hangs_is_given_up_and_does_no_harm_when_it_goes_on(tmp_path: Path) -> None:
    """Its streams go on at the other worker of the same scheduler. What it computes for them later reaches nobody."""
    beside = talking_worker()
    server = await start_fake_worker(beside, f"unix:{tmp_path}/w0")
    with worker_process(f"unix:{tmp_path}/stopped") as process:
        addresses = (f"unix:{tmp_path}/w0", f"unix:{tmp_path}/stopped")
        async with (
            running_scheduler(f"unix:{tmp_path}/s0", *addresses, config=CONFIG) as scheduler,
            running_router(f"unix:{tmp_path}/r", scheduler.address) as router,
            AsyncClient(f"unix:{tmp_path}/r", max_retries=0) as client,
        ):
            await until(lambda: all(group.ready.is_set() for group in scheduler.groups))
            stack = Stack(tmp_path, router, client, [scheduler], [beside], [server])
            assert process.stdin is not None
            tasks = [asyncio.create_task(stack.ask(index)) for index in range(NUM_STREAMS)]
            hung = scheduler.groups[1]
            num_steps = 0
            while min(map(len, stack.outputs.values()), default=0) < 5:
                if num_steps < MOST_STEPS:
                    num_steps += 1
                    process.stdin.write(b".")
                await asyncio.sleep(0.01)
            assert hung.num_unfinished
            process.send_signal(signal.SIGSTOP)
            hung.steps._patience._least_s = 1.0
            await until(lambda: not hung.ready.is_set())
            await asyncio.gather(*tasks)
            stack.check()
            process.stdin.close()
            process.send_signal(signal.SIGCONT)
            await until(hung.ready.is_set)
            await asyncio.gather(*(stack.ask(NUM_STREAMS + index) for index in range(NUM_STREAMS)))
            stack.check()
            assert router.placement.num_resubmissions == 0
    await server.stop(0)


async def test_a_sequence_that_workers_die_of_alone_fails_wherever_they_were(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as stack:
        for worker in stack.workers:
            worker.script.deadly_token_id = DEADLY
        epochs = sum(worker.epoch for worker in stack.workers)
        beside = [asyncio.create_task(stack.ask(index)) for index in range(6)]
        with pytest.raises(QuireError, match="exited twice") as caught:
            await stack.client.generate([DEADLY, 7], temperature=0, max_tokens=MAX_TOKENS)
        assert caught.value.status is grpc.StatusCode.INTERNAL
        await asyncio.gather(*beside)
        stack.check()
        await until(lambda: all(scheduler.groups[0].ready.is_set() for scheduler in stack.schedulers))
        # No upper bound: a worker that is back before the abort of a moved sequence arrives dies of it once more. That
        # counts as nothing, and sends whatever was moved to it back to the other.
        assert sum(worker.epoch for worker in stack.workers) - epochs >= 2


async def test_a_moved_sequence_brings_its_losses_along(start_router: StartRouter) -> None:
    first, other = fake_scheduler(pausing(4, asyncio.Event())), fake_scheduler()
    first.load.num_ready_groups = 1
    api = await start_router(first, other)
    while not all(connection.load.has_report for connection in api.router.placement.connections):
        await api.get("GetHealth")
    call = await stream(api, n=2)
    messages = await read_until(call, 1)
    (submit,) = first.submits
    for choice, num_losses in zip(submit.choices, (2, 0), strict=True):
        loss = scheduler_pb2.WorkerLoss(sequence_id=choice.sequence_id, num_losses=num_losses)
        await first.send(scheduler_pb2.Frame(worker_losses=[loss] if num_losses else []))
    # Of an attempt that is over.
    stale = scheduler_pb2.WorkerLoss(sequence_id=submit.choices[1].sequence_id, attempt=7, num_losses=3)
    await first.send(scheduler_pb2.Frame(worker_losses=[stale]))
    first.load.num_ready_groups = 0
    other.load.num_ready_groups = 1
    messages += await read_rest(call)
    assert len(text_in(messages)) == 2 * len(GREETING)
    (moved,) = other.submits
    assert [choice.num_worker_losses for choice in moved.choices] == [2, 0]
    assert [choice.attempt for choice in moved.choices] == [1, 1]
    assert [choice.was_accepted for choice in moved.choices] == [True, True]
    assert [unpack(choice.output_token_ids) for choice in moved.choices] == [IDS[:4], IDS[:4]]
    await first.wait_for(lambda: {choice.sequence_id for choice in submit.choices} <= set(first.aborted))


async def test_a_draining_scheduler_and_one_of_another_model_take_nothing_over(start_router: StartRouter) -> None:
    resume = asyncio.Event()
    first = fake_scheduler(pausing(4, resume))
    draining, other_model = fake_scheduler(), fake_scheduler(answer_text("No."), name="other")
    first.load.num_ready_groups = 1
    draining.load.is_draining = True
    api = await start_router(first, draining, other_model)
    while not all(connection.load.has_report for connection in api.router.placement.connections):
        await api.get("GetHealth")
    call = await stream(api)
    messages = await read_until(call, 1)
    draining.load.num_ready_groups = other_model.load.num_ready_groups = 1
    first.load.num_ready_groups = 0
    connections = api.router.placement.connections
    while not (connections[0].lacks_workers and connections[1].has_workers and connections[2].has_workers):
        await api.get("GetHealth")
    resume.set()
    messages += await read_rest(call)
    assert text_in(messages) == GREETING
    assert (len(first.submits), len(draining.submits), len(other_model.submits)) == (1, 0, 0)
    assert first.aborted == []


def refusing_once(code: grpc.StatusCode) -> Script:
    """Refuses the first submission; answers every later one."""
    num_submits = 0

    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        nonlocal num_submits
        num_submits += 1
        error = scheduler_pb2.Error(code=code.value[0], message="not here")
        return Answer([], error=error) if num_submits == 1 else Answer(IDS)

    return script


def always_pausing(after: int, resume: asyncio.Event) -> Script:
    return lambda submit, choice: Answer(IDS, pause_after=after, resume=resume)


async def stream_at_first(start_router: StartRouter, first: FakeScheduler, other: FakeScheduler) -> tuple[Api, Any]:
    """A stream that has begun at `first`. Then `other` starts, with a worker, and `first` loses its own."""
    await other.start()
    await other.stop()
    first.load.num_ready_groups = other.load.num_ready_groups = 1
    api = await start_router(first, other)
    call = await stream(api)
    await first.wait_for(lambda: first.num_running == 1)
    first.load.num_ready_groups = 0
    await until(lambda: api.router.placement.connections[0].lacks_workers)
    await other.start(other.address)
    await until(lambda: api.router.placement.connections[1].has_workers)
    return api, call


async def loads_from(api: Api, index: int, count: int) -> None:
    """Waits for as many more loads: each of them is a chance to move sequences."""
    connection = api.router.placement.connections[index]
    last = connection.num_loads + count
    await until(lambda: connection.num_loads >= last)


async def test_a_scheduler_with_too_small_a_context_takes_nothing_over(start_router: StartRouter) -> None:
    resume = asyncio.Event()
    first, small = fake_scheduler(pausing(4, resume)), fake_scheduler(max_model_len=64)
    api, call = await stream_at_first(start_router, first, small)
    await loads_from(api, 0, 3)
    resume.set()
    assert text_in(await read_rest(call)) == GREETING
    assert (len(first.submits), small.submits, first.aborted) == (1, [], [])


async def test_a_moved_sequence_that_its_target_cannot_take_goes_back(start_router: StartRouter) -> None:
    resume = asyncio.Event()
    first, other = fake_scheduler(always_pausing(4, resume)), fake_scheduler(refusing_once(INVALID_ARGUMENT))
    api, call = await stream_at_first(start_router, first, other)
    await first.wait_for(lambda: len(first.submits) == 2)
    # It is not sent to and fro.
    await loads_from(api, 0, 3)
    assert (len(first.submits), len(other.submits)) == (2, 1)
    resume.set()
    assert text_in(await read_rest(call)) == GREETING


async def test_a_request_that_its_worker_rejects_after_a_move_fails(start_router: StartRouter) -> None:
    """The sequence has a token from the second scheduler, so that one has taken it: the error is the request's."""
    error = scheduler_pb2.Error(code=INVALID_ARGUMENT.value[0], message="no token is left")
    first = fake_scheduler(always_pausing(4, asyncio.Event()))
    other = fake_scheduler(lambda submit, choice: Answer(IDS[:6], error=error))
    _, call = await stream_at_first(start_router, first, other)
    assert b"no token is left" in b"".join(await read_rest(call))
    assert (len(first.submits), len(other.submits)) == (1, 1)


async def test_a_scheduler_that_was_unavailable_once_is_tried_again(start_router: StartRouter) -> None:
    first, other = fake_scheduler(always_pausing(4, asyncio.Event())), fake_scheduler(refusing_once(UNAVAILABLE))
    _, call = await stream_at_first(start_router, first, other)
    async with asyncio.timeout(HANG_S):
        assert text_in(await read_rest(call)) == GREETING
    assert (len(first.submits), len(other.submits)) == (2, 2)
