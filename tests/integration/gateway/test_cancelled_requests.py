"""Many requests that are cancelled at once do no harm to the answers of others."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import AsyncIterator
from pathlib import Path

from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S, until
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import start_gateway
from tests.integration.gateway.fake_router import FakeRouter, event, waiting_for

CHAT = "/v1/chat/completions"
# By default, Envoy closes a connection that has 1,000 cancelled requests to report. The kernel takes some hundreds of
# these requests from it.
NUM_CANCELLED = 1600
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: 1000\r\n\r\n" + b" " * 1000
)


@contextlib.asynccontextmanager
async def road(path: str, router: str, is_open: asyncio.Event) -> AsyncIterator[None]:
    """A Unix socket at `path` that leads to the router. What the gateway sends waits while `is_open` is not set."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, upstream = await asyncio.open_unix_connection(router)

        async def ask() -> None:
            try:
                while data := await reader.read(4096):
                    await is_open.wait()
                    upstream.write(data)
                    await upstream.drain()
            finally:
                upstream.close()

        asking = asyncio.create_task(ask())
        try:
            while data := await answers.read(4096):
                writer.write(data)
        finally:
            asking.cancel()
            writer.close()

    async with await asyncio.start_unix_server(connected, path, limit=4096):
        yield


class Admin:
    """Envoy's own counters."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def count(self, name: str) -> int:
        reply = await call(self._address, "GET", f"/stats?filter=^{name}$")
        return int(reply.body.rpartition(b": ")[2])

    async def num_cancelled(self) -> int:
        return await self.count("http.gateway.downstream_cx_destroy_remote_active_rq")


async def cancel_requests(address: str, admin: Admin) -> None:
    """Returns once the gateway has seen that their clients are gone."""
    before = await admin.num_cancelled()
    host, _, port = address.rpartition(":")
    for _ in range(NUM_CANCELLED):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(REQUEST)
        await writer.drain()
        writer.close()
    async with asyncio.timeout(HANG_S):
        while await admin.num_cancelled() < before + NUM_CANCELLED:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.01)


async def test_the_router_s_other_answers_go_on(short_directory: Path, router: FakeRouter) -> None:
    admin_port, is_open = free_port(), asyncio.Event()
    admin = Admin(f"127.0.0.1:{admin_port}")

    async def answered_meanwhile(address: str) -> Reply | None:
        """None: the answer was cut off."""
        is_open.set()
        router.reset()
        release = asyncio.Event()
        router.script = waiting_for(release.wait(), event("1"), event("2"))
        answer = asyncio.create_task(call(address, "POST", CHAT, b"{}"))
        await until(lambda: router.calls == 1)
        is_open.clear()
        await cancel_requests(address, admin)
        is_open.set()
        release.set()
        try:
            return await answer
        except http.client.IncompleteRead:
            return None

    async with road(f"{short_directory}/road.sock", f"{short_directory}/router.sock", is_open):
        routers = [f"unix:{short_directory}/road.sock"]
        gateway = await start_gateway(short_directory, routers, "--admin-port", str(admin_port))
        try:
            # The gateway gives up a router that answers none of its pings for 5 s. A slow machine may need as long.
            reply, num_lost = await answered_meanwhile(gateway.address), 0
            while (num_now := await admin.count("cluster.routers.http2.keepalive_timeout")) > num_lost:
                reply, num_lost = await answered_meanwhile(gateway.address), num_now
        finally:
            await gateway.stop()
    assert reply is not None, "the answer was cut off"
    assert (reply.status, reply.body) == (200, b"data: 1\n\ndata: 2\n\n")
