"""Keeps the newest value of a source."""

from __future__ import annotations

import asyncio

from shared.discovery.parts import Parts
from shared.discovery.source import TimedSource


class Latest:
    """Follows a source in a task of its own. `parts` are empty and stale until the source has answered."""

    def __init__(self, source: TimedSource) -> None:
        self.source = source
        self.parts = Parts({}, is_stale=True)
        self.is_pending = True  # until the source has yielded a value
        self._following: asyncio.Task[None] | None = None

    def start(self, changed: asyncio.Event) -> None:
        """Sets `changed` after each change of `parts`, and when the source has failed."""
        self._following = asyncio.create_task(self._follow(changed))

    def check(self) -> None:
        """Raises the error of a source that has failed."""
        if self._following is not None and self._following.done():
            self._following.result()

    def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, changed: asyncio.Event) -> None:
        try:
            async for parts in self.source.watch():
                self.parts, self.is_pending = parts, False
                changed.set()
        finally:
            changed.set()
