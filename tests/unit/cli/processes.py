"""What the kernel knows of processes that are not ours to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from tests.fakes.waiting import HANG_S


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """False too for one that has ended and waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def with_environment(entry: str) -> list[int]:
    """Running processes that inherited an environment variable, `NAME=value`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # Gone meanwhile.
    return [pid for pid in found if is_running(pid)]


async def until_ended(pids: Iterable[int]) -> None:
    """Raises TimeoutError where one still runs after HANG_S seconds."""
    async with asyncio.timeout(HANG_S):
        while any(map(is_running, pids)):  # noqa: ASYNC110 - nobody tells when somebody else's child ends
            await asyncio.sleep(0.005)
