"""The four parts, each started by its own command as a container would; clients that leave take nothing with them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.conftest import ROOT, Server, free_port, wait_healthy


@dataclass(frozen=True)
class Parts:
    server: Server
    scheduler_address: str


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    directory: Path = tmp_path_factory.mktemp("parts")
    port = free_port()
    worker, scheduler, router = (f"unix:{directory}/{name}" for name in "wsr")
    commands = [
        ["worker", "--listen", worker],
        ["scheduler", "--listen", scheduler, "--worker", worker],
        ["router", "--listen", router, "--scheduler", scheduler],
        ["gateway", "--port", str(port), "--router", router],
    ]
    with ExitStack() as stack:
        log = stack.enter_context((directory / "log").open("w+"))
        processes = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, "-m", "quire.cli.main", *command], stdout=log, stderr=log, cwd=ROOT
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            processes.append(process)
        wait_healthy(processes[-1], port, log.fileno())
        yield Parts(Server(port, "quire-chat", 0), scheduler)


async def test_a_client_that_leaves_frees_its_blocks_within_200_ms(parts: Parts) -> None:
    body = {"model": "quire-chat", "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    async with grpc.aio.insecure_channel(parts.scheduler_address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

        async def stats() -> scheduler_pb2.GetStatsResponse:
            response: scheduler_pb2.GetStatsResponse = await stub.GetStats(scheduler_pb2.GetStatsRequest())
            return response

        async def seconds_until_free() -> float:
            reader, writer = await asyncio.open_connection("127.0.0.1", parts.server.port)
            data = json.dumps(body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await reader.readuntil(b"data: ")
            before = await stats()
            assert before.load.num_running == 1
            assert before.load.num_used_blocks > 0
            writer.close()
            closed_at = time.monotonic()
            while (after := await stats()).load.num_used_blocks:
                assert time.monotonic() - closed_at < 5
                await asyncio.sleep(0.002)
            seconds = time.monotonic() - closed_at
            assert after.num_aborted == before.num_aborted + 1
            return seconds

        delays = sorted([await seconds_until_free() for _ in range(5)])
        print(f"blocks free after {[round(1000 * delay) for delay in delays]} ms")
        # The machine may be busy with something else in one of them, which is then tried again, once.
        if delays[-1] >= 0.2:
            delays[-1] = await seconds_until_free()
        assert max(delays) < 0.2
