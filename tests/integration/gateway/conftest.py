"""A real Envoy, started by `quire gateway`, in front of fake routers whose answers a test scripts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.status import Status, parse_status
from tests.integration.gateway.fake_router import FakeRouter


@dataclass(slots=True)
class Gateway:
    url: str
    process: asyncio.subprocess.Process
    access_log: Path

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


async def start_gateway(directory: Path, routers: Sequence[str], *options: str) -> Gateway:
    access_log = directory / "access.log"
    reader, writer = os.pipe()
    routing = [word for router in routers for word in ("--router", router)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire.cli.main", "gateway", "--port", "0", "--access-log", str(access_log)),
        *routing,
        *("--status-fd", str(writer)),
        *options,
        pass_fds=(writer,),
        env={**os.environ, "TMPDIR": str(directory)},
    )
    os.close(writer)
    status = Status("starting")
    with os.fdopen(reader) as lines:
        while status.state == "starting":
            status = parse_status(await asyncio.to_thread(lines.readline))
    assert status.state == "ready", status
    return Gateway(status.facts["url"], process, access_log)


@pytest.fixture
async def router(short_directory: Path) -> AsyncIterator[FakeRouter]:
    router = FakeRouter()
    await router.start(f"unix:{short_directory}/router.sock")
    yield router
    await router.stop()


@pytest.fixture
async def gateway(short_directory: Path, router: FakeRouter) -> AsyncIterator[Gateway]:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"])
    yield gateway
    await gateway.stop()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory with a short path: pytest's can exceed the 107 bytes that a Unix socket's path may have."""
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        yield Path(directory)
