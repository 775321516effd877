"""The router as a process: it says how its start goes, drains, and exits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from shared.status import Status, parse_status
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S
from tests.integration.router.conftest import answer_text, fake_scheduler, model_info
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, bundle_of
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

ROOT = Path(__file__).parents[3]
RUN = "import sys; from services.router.main import main; sys.exit(main(sys.argv[1:]))"


@contextlib.asynccontextmanager
async def router_process(
    *argv: str,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """A router process and what it reports. Killed at the end if it still runs."""
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, "--status-fd", str(writing), *argv, pass_fds=(writing,), cwd=ROOT
    )
    os.close(writing)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    try:
        yield process, reader
    finally:
        transport.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def status_of(reader: asyncio.StreamReader, state: str) -> Status:
    while (status := parse_status(await reader.readline())).state != state:
        pass
    return status


async def test_it_starts_serves_drains_and_exits(tmp_path: Path) -> None:
    resume = asyncio.Event()
    ids = [*byte_level().encode("Hello, world!").ids, EOS_TOKEN_ID]
    scheduler = fake_scheduler(lambda submit, choice: Answer(ids, pause_after=1, resume=resume))
    address = f"unix:{tmp_path}/router.sock"
    argv = ("--listen", address, "--scheduler", await scheduler.start(), "--metrics-port", str(free_port()))
    async with router_process(*argv) as (process, reader), grpc.aio.insecure_channel(address) as channel:
        assert (await status_of(reader, "starting")).detail == "waiting for a scheduler"
        assert (await status_of(reader, "ready")).facts == {"listen": address}
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(inference_pb2.GenerateRequest(text="x"))
        first = await call.read()
        url = f"http://127.0.0.1:{argv[-1]}/metrics"
        metrics = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=HANG_S).read().decode())
        assert re.search(
            r'^vllm:prompt_tokens_total\{model_name="test-model",router="[^"]+"\} 1\.0$', metrics, re.MULTILINE
        )
        process.send_signal(signal.SIGTERM)
        # What is in progress finishes.
        resume.set()
        texts = [first.delta.text]
        while (response := await call.read()) is not grpc.aio.EOF:
            texts.append(response.delta.text)
        assert "".join(texts) == "Hello, world!"
        assert await process.wait() == 0
    await scheduler.stop()


async def test_it_can_be_stopped_while_it_waits(tmp_path: Path) -> None:
    argv = ("--listen", f"unix:{tmp_path}/router.sock", "--scheduler", f"unix:{tmp_path}/nobody.sock")
    async with router_process(*argv) as (process, reader):
        await status_of(reader, "starting")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_why_it_waits_for_ever_is_a_note(tmp_path: Path) -> None:
    """Which `quire serve` shows without `-v`."""
    bundle, sha256 = bundle_of("{}", "{}")
    scheduler = FakeScheduler(model_info(sha256, len(bundle), byte_level()), bundle, answer_text("x"))
    argv = ("--listen", f"unix:{tmp_path}/router.sock", "--scheduler", await scheduler.start())
    async with router_process(*argv) as (_, reader):
        while not (status := parse_status(await reader.readline())).is_note:
            assert status.state == "starting"
        assert "the tokenizer bundle cannot be read" in status.detail
        assert scheduler.address in status.detail
    await scheduler.stop()


async def test_what_keeps_it_from_starting_is_said(tmp_path: Path) -> None:
    async with router_process("--listen", f"unix:{tmp_path}/router.sock") as (process, reader):
        assert (await status_of(reader, "failed")).detail == (
            "give at least one --scheduler address, or the Redis that knows them with --redis"
        )
        assert await process.wait() == 1
    argv = ("--listen", f"unix:{tmp_path}/no/such/place.sock", "--scheduler", "127.0.0.1:1")
    async with router_process(*argv) as (process, reader):
        assert "cannot listen on" in (await status_of(reader, "failed")).detail
        assert await process.wait() == 1


@pytest.mark.parametrize("argv", [("--max-n", "0"), ("--max-n", "many")])
async def test_bad_options_stop_the_start(argv: tuple[str, ...]) -> None:
    async with router_process(*argv) as (process, _):
        assert await process.wait() != 0
