"""Follows a source for as long as a process runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shared.discovery.parts import Parts
from shared.discovery.source import Source

logger = logging.getLogger(__name__)

_PAUSE_AFTER_FAILURE_SECONDS = 1.0


async def follow(source: Source, apply: Callable[[Parts], None]) -> None:
    """Calls `apply` with each value that the source yields, until cancelled. If the source or `apply` raises, which is
    a bug, logs the error and watches the source anew: the process keeps the parts that it knows, and does not miss
    later changes."""
    while True:
        try:
            async for parts in source.watch():
                apply(parts)
            logger.error("a source of discovery has ended; watching it anew")
        except Exception:
            logger.exception("following a source of discovery failed; watching it anew")
        await asyncio.sleep(_PAUSE_AFTER_FAILURE_SECONDS)
