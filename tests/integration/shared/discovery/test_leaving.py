"""A part that ends drains at once, whatever Redis does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from shared.python_child import HOME
from tests.fakes.waiting import HANG_S, until

# Runs a part. The end of its registration waits until the drain has begun.
PROGRAM = """
import asyncio, importlib, sys
from shared.discovery import Registry
main = importlib.import_module(f"services.{sys.argv[1]}.main")
drain, has_begun = main.drain, asyncio.Event()

async def begin(*arguments):
    has_begun.set()
    return await drain(*arguments)

async def leave(registry):
    await has_begun.wait()

main.drain, Registry.leave = begin, leave
sys.exit(main.main(sys.argv[2:]))
"""
OPTIONS = {
    "router": ("--scheduler", "unix:/nowhere/s.sock"),
    "scheduler": ("--worker", "unix:/nowhere/w.sock"),
    "worker": (str(HOME / "quire" / "models" / "quire-chat"),),
}


@pytest.mark.parametrize("part", OPTIONS)
async def test_a_drain_does_not_wait_for_redis(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # because a socket's path must be short
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, part, *OPTIONS[part], "--listen", "unix:part.sock"),
        env={**os.environ, "PYTHONPATH": str(HOME)},
    )
    try:
        await until(Path("part.sock").exists)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HANG_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
