"""How much the gateway takes on at a time: what is over a limit is turned away, and what is under way goes on."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter, event, waiting_for

CHAT = "/v1/chat/completions"
# For one client, between the router and what the client reads.
MAX_BUFFERED_BYTES = 600_000


async def test_one_connection_over_the_limit_is_closed(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--max-connections", "1")
    host, _, port = gateway.address.rpartition(":")
    kept = http.client.HTTPConnection(gateway.address, timeout=HANG_S)

    def health() -> int:
        kept.request("GET", "/health")
        response = kept.getresponse()
        response.read()
        return response.status

    try:
        assert await asyncio.to_thread(health) == 200
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), HANG_S) == b""
        writer.close()
        assert await asyncio.to_thread(health) == 200
    finally:
        kept.close()
        await gateway.stop()


async def test_one_stream_over_the_limit_is_503(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--max-streams", "1")
    release = asyncio.Event()
    router.script = waiting_for(release.wait(), event("1"), event("2"))
    connection = http.client.HTTPConnection(gateway.address, timeout=HANG_S)
    try:
        connection.request("POST", CHAT, b"{}")
        response = await asyncio.to_thread(connection.getresponse)
        assert await asyncio.to_thread(response.readline) == b"data: 1\n"

        refused = await call(gateway.address, "POST", CHAT, b"{}")

        assert (refused.status, refused.error["type"], refused.headers["retry-after"]) == (503, "server_error", "1")
        assert router.calls == 1
        release.set()
        assert b"data: 2" in await asyncio.to_thread(response.read)
        router.reset()
        assert (await call(gateway.address, "POST", CHAT, b"{}")).status == 200
    finally:
        connection.close()
        await gateway.stop()


async def test_little_is_buffered_for_a_client_that_does_not_read(router: FakeRouter, gateway: Gateway) -> None:
    num_sent = 0

    async def pour(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        nonlocal num_sent
        for _ in range(20_000):
            yield HttpBody(content_type="text/event-stream", data=b"data: " + b"x" * 1016 + b"\n\n")
            num_sent += 1024

    router.script = pour
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    try:
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 2\r\n\r\n{}"
        )
        await reader.readline()
        # The router waits when the gateway takes no more. A machine that stands still looks the same for a moment.
        last, num_quiet = -1, 0
        while num_quiet < 4:
            num_quiet = num_quiet + 1 if num_sent == last else 0
            last = num_sent
            await asyncio.sleep(0.25)
    finally:
        writer.close()
    # The kernel's buffers at both ends, and the gateway's two.
    assert 0 < num_sent < MAX_BUFFERED_BYTES
