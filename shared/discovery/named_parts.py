"""Parts that have registered a host name."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

from shared.discovery.dns_source import DnsSource, split_name
from shared.discovery.latest import Latest
from shared.discovery.parts import Part, Parts
from shared.discovery.source import TimedSource


class NamedParts:
    """The parts of another source. A part with a host name is given by the addresses of the name. Until the first
    lookup of a name has ended, the parts are stale."""

    def __init__(self, source: TimedSource, look_up: Callable[[str, int], TimedSource] = DnsSource) -> None:
        self._given = Latest(source)
        self._look_up = look_up
        # By name and port.
        self._looked_up: dict[tuple[str, int], Latest] = {}

    def seconds_since_answer(self) -> float:
        return max(latest.source.seconds_since_answer() for latest in (self._given, *self._looked_up.values()))

    async def watch(self) -> AsyncIterator[Parts]:
        changed = asyncio.Event()
        self._given.start(changed)
        last: Parts | None = None
        try:
            while True:
                await changed.wait()
                changed.clear()
                self._look_names_up(changed)
                for latest in (self._given, *self._looked_up.values()):
                    latest.check()
                if (parts := self._merged()) != last:
                    last = parts
                    yield parts
        finally:
            for latest in (self._given, *self._looked_up.values()):
                latest.stop()
            self._looked_up.clear()

    def _look_names_up(self, changed: asyncio.Event) -> None:
        """Follows the names of the parts that the source knows now, and no others."""
        names = {name for address in self._given.parts.by_address if (name := split_name(address)) is not None}
        for gone in self._looked_up.keys() - names:
            self._looked_up.pop(gone).stop()
        for new in names - self._looked_up.keys():
            self._looked_up[new] = latest = Latest(self._look_up(*new))
            latest.start(changed)

    def _merged(self) -> Parts:
        by_address: dict[str, Part] = {}
        for address, part in self._given.parts.by_address.items():
            name = split_name(address)
            found = {address} if name is None else self._looked_up[name].parts.addresses
            by_address |= {one: dataclasses.replace(part, address=one) for one in sorted(found)}
        is_looking_up = any(latest.is_pending for latest in self._looked_up.values())
        return Parts(by_address, self._given.parts.is_stale or is_looking_up)
