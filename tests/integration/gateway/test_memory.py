"""A gateway whose memory is full of bodies that have not arrived completely."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S, until
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter, event, waiting_for

CHAT = "/v1/chat/completions"
MEMORY_MIB, BODY_BYTES = 128, 3_900_000
# On a slow machine, the first bodies must still be there when the last ones arrive.
OPTIONS = ("--gateway-memory-mib", str(MEMORY_MIB), "--body-timeout", "3600")
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n" % BODY_BYTES
)
MESSAGE = "The gateway has no memory for more requests at the moment; try again later."


async def send_most(address: str) -> None:
    """Sends a body without its last byte, and waits for the end of the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(HEAD + b" " * (BODY_BYTES - 1))
        await writer.drain()
        await reader.read()
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def full(gateway: Gateway) -> AsyncIterator[Reply]:
    """Sends bodies until there is no memory left, and yields the answer to a small request. They wait until the end."""
    clients: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(HANG_S):
            while (reply := await call(gateway.address, "POST", CHAT, b"{}")).status == 200:
                assert len(clients) * BODY_BYTES < 3 * MEMORY_MIB * 2**20
                clients.append(asyncio.create_task(send_most(gateway.address)))
                await asyncio.wait(clients[-1:], timeout=0.1)
        yield reply
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


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
