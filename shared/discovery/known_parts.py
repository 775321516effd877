"""All parts of one kind, from every source that the options name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from shared.discovery.latest import Latest
from shared.discovery.parts import Kind, Part, Parts
from shared.discovery.source import TimedSource


class KnownParts:
    """Merges at least one source, and counts for the metrics.

    If two sources know one address, the part of the later source counts: sources that know more than the address go
    last. The parts are stale until every source has answered.
    """

    def __init__(self, kind: Kind, sources: Sequence[TimedSource]) -> None:
        self.kind = kind
        self._latest = [Latest(source) for source in sources]

    @property
    def num_known(self) -> int:
        return len(self._merged().by_address)

    @property
    def num_stale(self) -> int:
        """Number of addresses that only stale sources know."""
        fresh = {address for latest in self._latest if not latest.parts.is_stale for address in latest.parts.by_address}
        return len(self._merged().addresses - fresh)

    def seconds_since_answer(self) -> float:
        """Returns the seconds since the last answer of the source that has been silent the longest."""
        return max(latest.source.seconds_since_answer() for latest in self._latest)

    async def watch(self) -> AsyncIterator[Parts]:
        changed = asyncio.Event()
        for latest in self._latest:
            latest.start(changed)
        last: Parts | None = None
        try:
            while True:
                await changed.wait()
                changed.clear()
                for latest in self._latest:
                    latest.check()
                if (parts := self._merged()) != last:
                    last = parts
                    yield parts
        finally:
            for latest in self._latest:
                latest.stop()

    def _merged(self) -> Parts:
        by_address: dict[str, Part] = {}
        for latest in self._latest:
            by_address |= latest.parts.by_address
        return Parts(by_address, any(latest.parts.is_stale for latest in self._latest))
