"""All parts of one kind, from every source that the options name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from shared.discovery.parts import Kind, Part, Parts
from shared.discovery.source import TimedSource


class KnownParts:
    """Merges at least one source, and counts for the metrics.

    If two sources know one address, the part of the later source counts: sources that know more than the address go
    last. The parts are stale until every source has answered.
    """

    def __init__(self, kind: Kind, sources: Sequence[TimedSource]) -> None:
        self.kind = kind
        self._sources = sources
        self._parts_of = [Parts({}, is_stale=True) for _ in sources]

    @property
    def num_known(self) -> int:
        return len(self._merged().by_address)

    @property
    def num_stale(self) -> int:
        """Number of addresses that only stale sources know."""
        fresh = {address for parts in self._parts_of if not parts.is_stale for address in parts.by_address}
        return len(self._merged().addresses - fresh)

    def seconds_since_answer(self) -> float:
        """Returns the seconds since the last answer of the source that has been silent the longest."""
        return max(source.seconds_since_answer() for source in self._sources)

    async def watch(self) -> AsyncIterator[Parts]:
        changed = asyncio.Event()

        async def follow(index: int, source: TimedSource) -> None:
            try:
                async for parts in source.watch():
                    self._parts_of[index] = parts
                    changed.set()
            finally:
                changed.set()

        following = [asyncio.create_task(follow(index, source)) for index, source in enumerate(self._sources)]
        last: Parts | None = None
        try:
            while True:
                await changed.wait()
                changed.clear()
                for task in following:
                    if task.done():
                        task.result()  # raises the error of a source that has failed
                if (parts := self._merged()) != last:
                    last = parts
                    yield parts
        finally:
            for task in following:
                task.cancel()

    def _merged(self) -> Parts:
        by_address: dict[str, Part] = {}
        for parts in self._parts_of:
            by_address |= parts.by_address
        return Parts(by_address, any(parts.is_stale for parts in self._parts_of))
