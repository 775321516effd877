from __future__ import annotations

import asyncio

from shared.discovery import StaticSource


async def test_static_addresses_are_known_at_once_and_never_change() -> None:
    watch = StaticSource(["a:1", "unix:/b"]).watch()
    parts = await anext(watch)
    assert parts.addresses == {"a:1", "unix:/b"}
    assert not parts.is_stale
    change = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    assert not change.done()
    change.cancel()
