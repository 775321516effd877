"""A model's checkpoint is replaced behind its name: a new version starts, the schedulers of the old one stop, and every
stream has the tokens of one version alone. Real schedulers over fake workers with different weights."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.client import AsyncClient, QuireError
from services.router.main import Router
from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.stack import RunningScheduler, running_router, running_scheduler, talking_worker
from tests.fakes.waiting import until

OLD, NEW = 0, 1000
MAX_TOKENS = 40
NUM_STREAMS = 8


@dataclass(slots=True)
class Part:
    """A scheduler with its worker. The worker waits before each result until its gate lets it through."""

    scheduler: RunningScheduler
    worker: FakeWorker
    gate: asyncio.Semaphore
    stack: AsyncExitStack

    def open(self) -> None:
        self.worker.script.gate = None
        for _ in range(1000):
            self.gate.release()


async def start_part(directory: Path, name: str, version: str, weights: int) -> Part:
    stack, gate = AsyncExitStack(), asyncio.Semaphore(0)
    worker = talking_worker(version=version, weights=weights)
    worker.script.gate = gate
    server = await start_fake_worker(worker, f"unix:{directory}/{name}-worker")
    stack.push_async_callback(server.stop, 0)
    scheduler = await stack.enter_async_context(
        running_scheduler(f"unix:{directory}/{name}", f"unix:{directory}/{name}-worker")
    )
    return Part(scheduler, worker, gate, stack)


class Streams:
    """Streams of many clients. The outputs are seen while they grow."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.outputs: dict[int, list[int]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, count: int, model: str = "fake") -> None:
        for _ in range(count):
            index = len(self.outputs)
            self.outputs[index] = []
            self.tasks.append(asyncio.create_task(self._stream(index, model)))

    async def _stream(self, index: int, model: str) -> None:
        deltas = self._client.stream_generate(
            [index + 3, 7], model=model, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True
        )
        async for delta in deltas:
            self.outputs[index] += delta.token_ids

    def have_begun(self) -> bool:
        return all(self.outputs.values())

    def expected(self, index: int, weights: int) -> list[int]:
        return expected_output([index + 3, 7], MAX_TOKENS, (), choice_index=weights)


def names(router: Router) -> list[str]:
    return router.placement.models.versions("fake")


async def test_streams_of_a_replaced_checkpoint_have_the_tokens_of_one_version_alone(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        old = [await start_part(tmp_path, f"old{index}", "v1", OLD) for index in range(2)]
        addresses = [f"unix:{tmp_path}/{name}" for name in ("old0", "old1", "new")]
        router = await stack.enter_async_context(running_router(f"unix:{tmp_path}/router", *addresses))
        await until(lambda: sum(connection.is_ready for connection in router.placement.connections) == 2)
        client = await stack.enter_async_context(AsyncClient(f"unix:{tmp_path}/router"))
        streams = Streams(client)
        streams.start(NUM_STREAMS)
        for part in old:
            part.gate.release()
            part.gate.release()
        await until(lambda: sum(part.scheduler.num_unfinished for part in old) == NUM_STREAMS)

        new = await start_part(tmp_path, "new", "v2", NEW)
        stack.push_async_callback(new.stack.aclose)
        new.open()
        await until(lambda: names(router) == ["v1", "v2"])
        # The first scheduler of the old version drains and stops. The other one takes over its streams.
        old[0].scheduler.servicer.start_draining()
        await until(lambda: any(connection.is_draining for connection in router.placement.connections))
        await old[0].stack.aclose()
        await until(lambda: old[1].scheduler.num_unfinished == NUM_STREAMS)
        # The last one drains: it takes nothing new, and its streams run to their end.
        old[1].scheduler.servicer.start_draining()
        await until(lambda: names(router) == ["v2"])
        streams.start(NUM_STREAMS)
        await until(lambda: all(streams.outputs[NUM_STREAMS + index] for index in range(NUM_STREAMS)))
        assert old[1].scheduler.num_unfinished == NUM_STREAMS
        old[1].open()
        await asyncio.gather(*streams.tasks)
        await old[1].stack.aclose()
        for index, output in streams.outputs.items():
            assert output == streams.expected(index, OLD if index < NUM_STREAMS else NEW), index


async def test_without_any_scheduler_of_its_version_a_stream_continues_on_another_after_the_wait(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        old = await start_part(tmp_path, "old", "v1", OLD)
        addresses = [f"unix:{tmp_path}/{name}" for name in ("old", "new")]
        router = await stack.enter_async_context(
            running_router(f"unix:{tmp_path}/router", *addresses, scheduler_wait=0.5)
        )
        client = await stack.enter_async_context(AsyncClient(f"unix:{tmp_path}/router"))
        streams = Streams(client)
        streams.start(1)
        streams.start(1, "fake@v1")
        for _ in range(6):
            old.gate.release()
        await until(streams.have_begun)
        new = await start_part(tmp_path, "new", "v2", NEW)
        stack.push_async_callback(new.stack.aclose)
        new.open()
        await until(lambda: names(router) == ["v1", "v2"])
        await old.stack.aclose()
        await streams.tasks[0]
        output, first = streams.outputs[0], streams.expected(0, OLD)
        num_old = next(index for index, pair in enumerate(zip(output, first, strict=True)) if pair[0] != pair[1])
        assert num_old >= 1
        assert output[num_old:] == expected_output(
            [3, 7, *output[:num_old]], MAX_TOKENS - num_old, (), choice_index=NEW
        )
        with pytest.raises(QuireError, match="No scheduler of this model came back"):
            await streams.tasks[1]
