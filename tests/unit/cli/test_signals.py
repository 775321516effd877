"""Whatever happens to `quire serve`, no process is left behind."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import children, is_running, until_ended


async def start(*specs: str) -> tuple[asyncio.subprocess.Process, list[int]]:
    """The process and its parts, once they are ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.cli.stack_process", *specs),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), HANG_S) == b"ready\n"
    return process, children(process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_everything_and_is_no_failure(number: signal.Signals) -> None:
    process, parts = await start("a ready wait", "b ready wait")
    assert len(parts) == 2

    process.send_signal(number)
    _, stderr = await process.communicate()

    assert process.returncode == 0
    assert b"stopping" in stderr
    assert not any(map(is_running, parts))


async def test_a_second_signal_stops_at_once() -> None:
    process, parts = await start("a stubborn ready wait", "b ready wait")
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    while b"stopping" not in await process.stderr.readline():
        pass

    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.wait(), HANG_S)

    assert not any(map(is_running, parts))


async def test_even_sigkill_leaves_nothing() -> None:
    process, parts = await start("a stubborn ready wait", "b ready wait")

    process.kill()
    await process.wait()

    await until_ended(parts)
