"""A source of discovery that a test changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from shared.discovery import Part, Parts


class ChangingSource:
    """Knows the addresses that the test has set last. Any number of watchers can follow it."""

    def __init__(self, *addresses: str) -> None:
        self._parts = _parts(addresses, is_stale=False)
        self._changed = asyncio.Event()

    def set(self, *addresses: str, is_stale: bool = False) -> None:
        """Replaces all addresses."""
        self._parts = _parts(addresses, is_stale)
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[Parts]:
        while True:
            changed = self._changed
            yield self._parts
            await changed.wait()


class TimedChangingSource(ChangingSource):
    age = 0.0

    def seconds_since_answer(self) -> float:
        return self.age


def _parts(addresses: tuple[str, ...], is_stale: bool) -> Parts:
    return Parts({address: Part(address) for address in addresses}, is_stale)
