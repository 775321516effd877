"""Parts whose addresses are given as options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from shared.discovery.parts import Part, Parts


class StaticSource:
    """Knows a fixed set of addresses, whether or not a part runs there."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._parts = Parts({address: Part(address) for address in addresses})

    async def watch(self) -> AsyncIterator[Parts]:
        yield self._parts
        await asyncio.Event().wait()

    def seconds_since_answer(self) -> float:
        return 0.0
