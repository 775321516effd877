"""Bodies over the limit: their client learns what is wrong, even if it reads nothing before it has sent everything."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from deploy.envoy.render import MAX_READ_AT_ONCE, MOST_READ_BYTES
from shared.message_size import DEFAULT_MAX_BODY_BYTES
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter

CHAT = "/v1/chat/completions"
# More than the buffers of the sockets hold.
LARGE = 40_000_000
MESSAGE = f"The request body is too large: at most {DEFAULT_MAX_BODY_BYTES} bytes are allowed."
OPENAI = {"message": MESSAGE, "type": "invalid_request_error", "param": None, "code": "request_too_large"}


class Client:
    """Reads only once it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, gateway: Gateway) -> Client:
        host, _, port = gateway.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, path: str, length: int, num_sent: int) -> None:
        """Announces a body of `length` bytes, and sends `num_sent` of them."""
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}"
        self._writer.write(f"{head}\r\n\r\n".encode())
        await self.send_more(num_sent)

    async def send_more(self, length: int) -> None:
        self._writer.write(b" " * length)
        await asyncio.wait_for(self._writer.drain(), HANG_S)

    async def receive(self) -> tuple[int, Any]:
        """Returns the answer's status, and its JSON unless it is chunked."""
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), HANG_S)
        status, *lines = head.decode().lower().split("\r\n")
        for line in lines:
            if line.startswith("content-length:"):
                body = await asyncio.wait_for(self._reader.readexactly(int(line.partition(":")[2])), HANG_S)
                return int(status.split()[1]), json.loads(body)
        return int(status.split()[1]), None

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (CHAT, {"error": OPENAI}),
        ("/tokenize", {"error": OPENAI}),
        ("/v1/nothing", {"error": OPENAI}),
        ("/api/chat", {"error": MESSAGE}),
        ("/v2/embed", {"error": OPENAI}),
        ("/v2/models/m/generate", {"error": MESSAGE}),
    ],
)
@pytest.mark.parametrize("length", [DEFAULT_MAX_BODY_BYTES + 1, LARGE])
async def test_the_answer_comes_after_the_body(
    gateway: Gateway, router: FakeRouter, path: str, error: Any, length: int
) -> None:
    client = await Client.connect(gateway)
    await client.send(path, length, length)
    assert await client.receive() == (413, error)
    assert router.calls == 0
    # The connection can be used further.
    await client.send(CHAT, 2, 2)
    assert (await client.receive())[0] == 200
    client.close()


async def test_openais_asynchronous_client_tells_what_is_wrong(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.completions.create(model="m", prompt="x" * LARGE)
    assert (caught.value.status_code, caught.value.body) == (413, OPENAI)


async def test_a_page_may_read_the_answer(gateway: Gateway) -> None:
    reply = await call(gateway.address, "POST", CHAT, b" " * LARGE, {"origin": "http://localhost:3000"})
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (413, "http://localhost:3000")


async def test_anthropics_shape_has_the_request_id(gateway: Gateway) -> None:
    client = await Client.connect(gateway)
    await client.send("/v1/messages", LARGE, LARGE)
    status, body = await client.receive()
    assert (status, body["error"]) == (413, {"type": "request_too_large", "message": MESSAGE})
    assert (body["type"], bool(body["request_id"])) == ("error", True)
    client.close()


async def test_more_at_once_than_are_read_at_once(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--max-body-bytes", "1024")
    clients = [await Client.connect(gateway) for _ in range(3 * MAX_READ_AT_ONCE)]
    # All have begun before one ends.
    await asyncio.gather(*(client.send(CHAT, 100_000, 50_000) for client in clients))
    for client in reversed(clients):
        await client.send_more(50_000)
    for client in clients:
        status, body = await client.receive()
        assert (status, body["error"]["code"]) == (413, "request_too_large")
        client.close()
    await gateway.stop()


async def test_a_client_that_leaves_within_its_body_leaves_nothing(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--drain-timeout", "3600")
    for _ in range(3):
        client = await Client.connect(gateway)
        await client.send(CHAT, LARGE, 1_000_000)
        client.close()
    client = await Client.connect(gateway)
    await client.send(CHAT, 2, 2)
    assert (await client.receive())[0] == 200
    client.close()
    # It would wait for a request that is not complete.
    assert await asyncio.wait_for(gateway.stop(), HANG_S) == 0


async def test_what_would_take_too_long_is_refused_before_it_is_read(gateway: Gateway) -> None:
    client = await Client.connect(gateway)
    await client.send(CHAT, MOST_READ_BYTES + 1, 0)
    assert await client.receive() == (413, {"error": OPENAI})
    client.close()


async def test_a_large_body_that_trickles_in_is_cut(short_directory: Path, router: FakeRouter) -> None:
    address = f"unix:{short_directory}/router.sock"
    gateway = await start_gateway(short_directory, [address], "--body-timeout", "0.2")
    client = await Client.connect(gateway)
    await client.send(CHAT, LARGE, 1000)
    status, body = await client.receive()
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    client.close()
    await gateway.stop()
