"""A call to a peer that says goodbye as soon as the connection is there, as one does that is just stopping, fails once.

gRPC's library would start it anew without a pause until the peer closes the connection, and take memory each time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from benchmarks.abuse.memory import resident
from quire.cli import health
from quire.client import AsyncClient, Client, QuireError
from quire.inference.v1 import model_pb2
from services.router.dispatch.scheduler_connection import CONNECT
from services.scheduler.worker_groups.worker_link import GET_TOKENIZER, RUN
from shared.span_endpoint import SpanEndpoint
from shared.transport import GrpcChannel, StreamEndedError
from tests.fakes.waiting import until

# Frames of HTTP/2: empty settings, and a goodbye without an error, which lets all streams that have begun go on (RFC
# 9113, 6.5 and 6.8).
SETTINGS = bytes.fromhex("000000 04 00 00000000")
GOODBYE = bytes.fromhex("000008 07 00 00000000 7fffffff 00000000")
# MB that no call needs that fails once. One that is started anew all the time exceeds it within a second.
ENOUGH_MB = 200


class LeavingPeer:
    """Says goodbye on each connection, and keeps it open until the client closes it."""

    def __init__(self) -> None:
        self.num_connections = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._connections:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._connections.add(writer)
        # At once: a client that has the goodbye a little later than the settings starts the call anew only once.
        writer.write(SETTINGS + GOODBYE)
        try:
            while await reader.read(65_536):
                pass
        except OSError:
            pass
        finally:
            self._connections.discard(writer)
            writer.close()


@pytest.fixture
async def peer() -> AsyncIterator[LeavingPeer]:
    one = LeavingPeer()
    yield one
    one.stop()


async def until_either(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true. Fails if this process takes much memory meanwhile."""
    before = resident(os.getpid())

    def grown() -> bool:
        return resident(os.getpid()) - before > ENOUGH_MB

    await until(lambda: condition() or grown())
    assert not grown(), "the call is started anew without end"


async def opened(channel: GrpcChannel) -> None:
    await channel.open(RUN).read()


async def opened_when_ready(channel: GrpcChannel) -> None:
    await channel.open(CONNECT, wait_for_ready=True).read()


async def streamed(channel: GrpcChannel) -> None:
    async for _ in channel.replies(GET_TOKENIZER, model_pb2.GetTokenizerRequest()):
        pass


async def called(channel: GrpcChannel) -> None:
    await channel.call(GET_TOKENIZER, model_pb2.GetTokenizerRequest(), 600.0)


@pytest.mark.parametrize("use", [opened, opened_when_ready, streamed, called])
async def test_of_parts(peer: LeavingPeer, use: Callable[[GrpcChannel], Awaitable[None]]) -> None:
    channel = GrpcChannel(await peer.start())
    call = asyncio.ensure_future(use(channel))
    try:
        await until_either(call.done)
        with pytest.raises(StreamEndedError) as raised:
            await call
        assert raised.value.code is grpc.StatusCode.UNAVAILABLE
    finally:
        await channel.close()
        await asyncio.gather(call, return_exceptions=True)


def with_client(address: str) -> None:
    with Client(address, max_retries=0) as client:
        client.generate("Hello")


def with_async_client(address: str) -> None:
    async def generate() -> None:
        async with AsyncClient(address, max_retries=0) as client:
            await client.generate("Hello")

    asyncio.run(generate())


@pytest.mark.parametrize("use", [with_client, with_async_client])
async def test_of_clients(peer: LeavingPeer, use: Callable[[str], None]) -> None:
    call = asyncio.ensure_future(asyncio.to_thread(use, await peer.start()))
    try:
        await until_either(call.done)
        with pytest.raises(QuireError) as raised:
            await call
        assert raised.value.status is grpc.StatusCode.UNAVAILABLE
    finally:
        peer.stop()
        await asyncio.gather(call, return_exceptions=True)


async def test_of_a_probe(peer: LeavingPeer, capsys: pytest.CaptureFixture[str]) -> None:
    call = asyncio.ensure_future(asyncio.to_thread(health.main, [await peer.start()]))
    try:
        await until_either(call.done)
        assert await call == 1
        assert "is not reachable" in capsys.readouterr().err
    finally:
        peer.stop()
        await asyncio.gather(call, return_exceptions=True)


async def test_of_spans(peer: LeavingPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter tries again, after a pause and by itself."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{await peer.start()}")
    endpoint = SpanEndpoint()
    spans = [ReadableSpan("span", SpanContext(1, 1, is_remote=False))]
    export = asyncio.ensure_future(asyncio.to_thread(endpoint.export, spans))
    try:
        await until_either(lambda: peer.num_connections > 1)
    finally:
        peer.stop()
        endpoint.shutdown()
        await export
