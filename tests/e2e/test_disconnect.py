"""The four parts, each started by its own command as a container would; clients that leave take nothing with them."""

from __future__ import annotations

import asyncio
import json
import os
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
from tests.e2e.conftest import ROOT, wait_healthy
from tests.e2e.worker_script import WorkerScript, go_on, stop_at, wait_stopped
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S


@dataclass(frozen=True)
class Parts:
    port: int
    scheduler_address: str
    worker: int
    script: WorkerScript


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    directory: Path = tmp_path_factory.mktemp("parts")
    port, script = free_port(), WorkerScript(directory)
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
                [sys.executable, "-m", "quire.cli.main", *command], stdout=log, stderr=log, cwd=ROOT,
                env=os.environ | script.environment,
            )  # fmt: skip
            stack.callback(process.wait, HANG_S)
            stack.callback(process.terminate)
            processes.append(process)
        wait_healthy(processes[-1], port, log.fileno())
        yield Parts(port, scheduler, processes[0].pid, script)


async def test_a_client_that_leaves_frees_its_blocks_at_once(parts: Parts) -> None:
    """Before the worker takes another step: it stands still when the client leaves."""
    body = {"model": "quire-chat", "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    async with grpc.aio.insecure_channel(parts.scheduler_address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

        async def stats() -> scheduler_pb2.GetStatsResponse:
            response: scheduler_pb2.GetStatsResponse = await stub.GetStats(scheduler_pb2.GetStatsRequest())
            return response

        async def ask_and_leave() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
            data = json.dumps(body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await reader.readuntil(b"data: ")
            await asyncio.to_thread(wait_stopped, parts.worker, [])
            before = await stats()
            assert before.load.num_running == 1
            assert before.load.num_used_blocks > 0
            writer.close()
            closed_at = time.monotonic()
            while (after := await stats()).load.num_used_blocks:
                pass
            print(f"blocks free after {1000 * (time.monotonic() - closed_at):.0f} ms")
            assert after.num_aborted == before.num_aborted + 1

        for _ in range(5):
            parts.script.give(parts.worker, stop_at(num_sequences=1, num_tokens=20))
            try:
                await ask_and_leave()
            finally:
                go_on(parts.worker)
