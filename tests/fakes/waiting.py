"""Waits for what a test needs, however long the machine takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it looks at belongs to other tasks, which know of no event
            await asyncio.sleep(0.005)
