"""Parts of the last release and of this source tree in one deployment: on every hop, an old part works with a new one,
and a stream survives the death of its scheduler and of its worker."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quire.client import AsyncClient, QuireError
from tests.fakes import last_release
from tests.fakes.ports import free_port
from tests.fakes.redis_server import RedisServer, needs_redis
from tests.fakes.waiting import HANG_S

ROOT = Path(__file__).parents[2]
MAX_TOKENS = 300
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the last release is installed."""
    return installed(tmp_path_factory.mktemp("old"))


def installed(directory: Path, *, knows_redis: bool = False) -> Path:
    try:
        last_release.install(directory, knows_redis=knows_redis)
    except last_release.MissingReleaseError as error:
        pytest.skip(str(error))
    return directory


@dataclass(slots=True)
class Part:
    """A part as a process of the release in the directory `tree`."""

    tree: Path
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "quire", *self.arguments]
        self.process = subprocess.Popen(command, cwd=self.tree, env=last_release.environment(self.tree))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


@dataclass(slots=True)
class Deployment:
    client: AsyncClient
    scheduler: Part
    worker: Part

    async def tokens(self) -> AsyncIterator[int]:
        async for delta in self.client.stream_generate(PROMPT, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True):
            for token_id in delta.token_ids:
                yield token_id


@asynccontextmanager
async def deployment(directory: Path, router: Path, scheduler: Path, worker: Path) -> AsyncIterator[Deployment]:
    """Runs one router, scheduler and worker, each of its own release."""
    sockets = {name: f"unix:{directory}/{name}" for name in ("router", "scheduler", "worker")}
    parts = (
        Part(worker, ("worker", "--listen", sockets["worker"])),
        Part(scheduler, ("scheduler", "--listen", sockets["scheduler"], "--worker", sockets["worker"])),
        Part(router, ("router", "--listen", sockets["router"], "--scheduler", sockets["scheduler"])),
    )
    async with running(parts, sockets["router"]) as client:
        yield Deployment(client, parts[1], parts[0])


@asynccontextmanager
async def found_in_redis(directory: Path, one: Path, other: Path) -> AsyncIterator[Deployment]:
    """Runs a gateway and a scheduler of one release with a router and a worker of the other. All of them find each
    other in Redis."""
    redis, port = RedisServer(directory), free_port()
    known = ("--redis", redis.url)
    parts = (
        Part(other, ("worker", "--listen", f"unix:{directory}/worker", *known)),
        Part(one, ("scheduler", "--listen", f"unix:{directory}/scheduler", *known)),
        Part(other, ("router", "--listen", f"unix:{directory}/router", *known)),
        Part(one, ("gateway", "--host", "127.0.0.1", "--port", str(port), *known)),
    )
    try:
        async with running(parts, f"127.0.0.1:{port}") as client:
            yield Deployment(client, parts[1], parts[0])
    finally:
        redis.kill()


@asynccontextmanager
async def running(parts: Sequence[Part], server: str) -> AsyncIterator[AsyncClient]:
    """Runs the parts, and waits until a server serves a model. Yields its client."""
    for part in parts:
        part.start()
    try:
        async with AsyncClient(server) as client, asyncio.timeout(HANG_S):
            while True:
                assert all(part.process.poll() is None for part in parts), "a part has ended"
                with contextlib.suppress(QuireError):
                    if await client.models():
                        break
                await asyncio.sleep(0.1)
            yield client
    finally:
        for part in parts:
            part.kill()


# Two deployments have every hop between an old and a new part: router to scheduler, and scheduler to worker.
@pytest.mark.parametrize("old_scheduler", [False, True], ids=["new_scheduler", "old_scheduler"])
async def test_old_and_new_parts_work_together_and_lose_nothing(old: Path, tmp_path: Path, old_scheduler: bool) -> None:
    others, scheduler = (ROOT, old) if old_scheduler else (old, ROOT)
    async with deployment(tmp_path, others, scheduler, others) as parts:
        await loses_nothing(parts)


@pytest.fixture(scope="module")
def old_with_redis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the last release is installed whose parts can register in Redis."""
    return installed(tmp_path_factory.mktemp("old"), knows_redis=True)


# These add the hop from gateway to router, and parts of both releases that register.
@needs_redis
@pytest.mark.parametrize(
    "old_gateway",
    [pytest.param(False, marks=pytest.mark.thorough), True],
    ids=["new_gateway", "old_gateway"],
)
async def test_old_and_new_parts_find_each_other_in_redis(
    old_with_redis: Path, tmp_path: Path, old_gateway: bool
) -> None:
    one, other = (old_with_redis, ROOT) if old_gateway else (ROOT, old_with_redis)
    async with found_in_redis(tmp_path, one, other) as parts:
        await loses_nothing(parts)


async def loses_nothing(parts: Deployment) -> None:
    """Kills the scheduler and the worker under a stream each."""
    expected = [token_id async for token_id in parts.tokens()]
    assert len(expected) == MAX_TOKENS
    for part in (parts.scheduler, parts.worker):
        received: list[int] = []
        async for token_id in parts.tokens():
            received.append(token_id)
            if len(received) == 3:
                part.restart()
        assert received == expected
