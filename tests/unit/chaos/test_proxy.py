from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.ports import free_port
from tests.fakes.tcp_proxy import Proxy
from tests.fakes.waiting import HANG_S

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def proxied() -> AsyncIterator[Proxy]:
    """Runs a proxy in front of a server that sends back what it receives."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    port = free_port()
    async with asyncio.timeout(HANG_S), await asyncio.start_server(echo, "127.0.0.1", port):
        proxy = Proxy(free_port(), f"127.0.0.1:{port}")
        await proxy.up()
        try:
            yield proxy
        finally:
            await proxy.down()


@asynccontextmanager
async def connection(proxy: Proxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(streams: Streams, data: bytes) -> bytes:
    streams[1].write(data)
    return await streams[0].readexactly(len(data))


async def is_broken(streams: Streams) -> bool:
    try:
        return await streams[0].read() == b""
    except ConnectionError:
        return True


def test_bytes_pass_both_ways() -> None:
    async def scenario() -> None:
        async with proxied() as proxy, connection(proxy) as streams:
            assert await ask(streams, b"Hello!") == b"Hello!"
            proxy.delay_s = 0.01
            assert await ask(streams, b"Hello again!") == b"Hello again!"

    asyncio.run(scenario())


def test_a_cut_breaks_connections_and_allows_new_ones() -> None:
    async def scenario() -> None:
        async with proxied() as proxy, connection(proxy) as old:
            await ask(old, b"Hello!")
            await proxy.cut()
            assert await is_broken(old)
            async with connection(proxy) as new:
                assert await ask(new, b"Hello!") == b"Hello!"

    asyncio.run(scenario())


def test_a_link_that_is_down_refuses_connections_until_it_is_up_again() -> None:
    async def scenario() -> None:
        async with proxied() as proxy, connection(proxy) as old:
            await ask(old, b"Hello!")
            await proxy.down()
            assert await is_broken(old)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", proxy.port)
            await proxy.up()
            async with connection(proxy) as new:
                assert await ask(new, b"Hello!") == b"Hello!"

    asyncio.run(scenario())


def test_what_a_side_sent_before_it_ended_arrives() -> None:
    """The other side keeps sending, as HTTP/2 does with its window updates, and reads late."""
    answer = bytes(3_000_000)

    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        port = free_port()
        async with asyncio.timeout(HANG_S), await asyncio.start_server(send, "127.0.0.1", port):
            proxy = Proxy(free_port(), f"127.0.0.1:{port}")
            await proxy.up()
            async with connection(proxy) as (reader, writer):
                received = b""
                while piece := await reader.read(10_000):
                    received += piece
                    writer.write(b"more, please")
                assert len(received) == len(answer)
            await proxy.down()

    asyncio.run(scenario())


def test_a_stalled_link_holds_bytes_back_and_loses_none() -> None:
    async def scenario() -> None:
        async with proxied() as proxy, connection(proxy) as old:
            await ask(old, b"Hello!")
            proxy.stall()
            asked = asyncio.create_task(ask(old, b"Still there?"))
            async with connection(proxy) as new:
                also_asked = asyncio.create_task(ask(new, b"And you?"))
                await asyncio.sleep(0.05)
                assert not asked.done()
                assert not also_asked.done()
                proxy.unstall()
                assert await asked == b"Still there?"
                assert await also_asked == b"And you?"

    asyncio.run(scenario())
