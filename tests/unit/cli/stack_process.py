"""A process that supervises fake parts as `quire serve` supervises real ones. It takes the words of one part per
argument, and says on standard output when the stack is ready."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from quire.cli.display import PlainDisplay
from quire.cli.part import PartSpec
from quire.cli.serve import supervise

FAKE_PART = Path(__file__).with_name("fake_part.py")


async def works() -> str | None:
    return None


async def main(*specs: str) -> None:
    async def on_ready(stop: Callable[[], None]) -> None:
        print("ready", flush=True)

    commands = [(sys.executable, "-IS", str(FAKE_PART), *spec.split()) for spec in specs]
    parts = [PartSpec(command[3], command, stop_timeout=1000.0) for command in commands]
    await supervise(parts, os.environ, PlainDisplay(verbose=False), works, on_ready)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
