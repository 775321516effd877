"""A gateway whose memory is full of bodies that have not arrived completely."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S, until
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter, event, waiting_for
from tests.integration.gateway.http2 import send_unfinished
from tests.integration.gateway.test_grpc_errors import assert_details

CHAT = "/v1/chat/completions"
MEMORY_MIB, BODY_BYTES = 128, 3_900_000
# On a slow machine, the first bodies must still be there when the last ones arrive.
OPTIONS = ("--gateway-memory-mib", str(MEMORY_MIB), "--body-timeout", "3600")
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n" % BODY_BYTES
)
MESSAGE = "The gateway has no memory for more requests at the moment; try again later."


async def send_most(address: str, sent: asyncio.Future[None]) -> None:
    """Sends a body without its last byte, then completes `sent` and waits for the end of the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(HEAD + b" " * (BODY_BYTES - 1))
        await writer.drain()
        sent.set_result(None)
        await reader.read()
    finally:
        writer.close()


class Bodies:
    """Bodies that wait for their last byte until the end of the block."""

    def __init__(self, send: Callable[[asyncio.Future[None]], Coroutine[Any, Any, object]]) -> None:
        self._send = send
        self.clients: list[asyncio.Task[object]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)

    async def add(self) -> None:
        """Returns when the body has been sent or refused."""
        assert len(self.clients) * BODY_BYTES < 3 * MEMORY_MIB * 2**20
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.clients.append(asyncio.create_task(self._send(sent)))
        await asyncio.wait((self.clients[-1], sent), return_when=asyncio.FIRST_COMPLETED)


@contextlib.asynccontextmanager
async def full(gateway: Gateway) -> AsyncIterator[Reply]:
    """Sends bodies until there is no memory left, and yields the answer to a small request. They wait until the end."""
    async with Bodies(partial(send_most, gateway.address)) as bodies:
        async with asyncio.timeout(HANG_S):
            while (reply := await call(gateway.address, "POST", CHAT, b"{}")).status == 200:
                await bodies.add()
        yield reply


async def test_new_requests_get_503_and_running_answers_go_on(short_directory: Path, router: FakeRouter) -> None:
    admin_port = free_port()
    options = (*OPTIONS, "--admin-port", str(admin_port))
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], *options)
    release = asyncio.Event()
    router.script = waiting_for(release.wait(), event("1"), event("2"))
    running = asyncio.create_task(call(gateway.address, "POST", CHAT, b"{}"))
    try:
        await until(lambda: router.calls == 1)
        router.reset()
        async with full(gateway) as refused:
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.error == {"message": MESSAGE, "type": "server_error", "param": None, "code": "overloaded"}
            assert (await call(f"127.0.0.1:{admin_port}", "GET", "/ready")).status == 200
            release.set()
            reply = await running
            assert (reply.status, reply.body) == (200, b"data: 1\n\ndata: 2\n\n")
        async with asyncio.timeout(HANG_S):
            while (await call(gateway.address, "POST", CHAT, b"{}")).status != 200:
                pass
    finally:
        await gateway.stop()


async def test_over_http2_the_largest_bodies_are_reset(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], *OPTIONS)
    release = asyncio.Event()
    router.script = waiting_for(release.wait(), event("1"), event("2"))
    running = asyncio.create_task(call(gateway.address, "POST", CHAT, b"{}"))
    send = partial(send_unfinished, gateway.address, CHAT.encode(), BODY_BYTES - 1)
    try:
        await until(lambda: router.calls == 1)
        router.reset()
        async with Bodies(send) as bodies, asyncio.timeout(HANG_S):
            while not (ended := [client for client in bodies.clients if client.done()]):
                await bodies.add()
            assert all(client.result() for client in ended), "no connection was closed"
            assert (await call(gateway.address, "POST", CHAT, b"{}")).status == 200
            release.set()
            reply = await running
        assert (reply.status, reply.body) == (200, b"data: 1\n\ndata: 2\n\n")
    finally:
        await gateway.stop()


async def test_grpc_calls_are_told_the_same(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], *OPTIONS)
    refusals: list[grpc.aio.AioRpcError] = []
    try:
        async with grpc.aio.insecure_channel(gateway.address) as channel, asyncio.timeout(HANG_S):
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            await channel.channel_ready()
            while not refusals:  # all bodies may have been refused, so that there is memory again
                async with full(gateway):
                    try:
                        await stub.Generate(inference_pb2.GenerateRequest(model="fake", text="Hi")).read()
                    except grpc.aio.AioRpcError as error:
                        refusals.append(error)
    finally:
        await gateway.stop()
    assert (refusals[0].code(), refusals[0].details()) == (grpc.StatusCode.UNAVAILABLE, MESSAGE)
    error_object = json.loads(dict(refusals[0].trailing_metadata() or ())["quire-error"])["error"]
    assert error_object["code"] == "overloaded"
    assert_details(refusals[0], error_object, retry_seconds=1)
