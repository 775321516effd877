"""The HTTP session: what goes out, and connections that are kept, closed and opened."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from quire.bench.session import open_session
from tests.unit.bench.scripted_server import serving, whole


async def ask(session: aiohttp.ClientSession, url: str, body: bytes = b"{}") -> bytes:
    async with session.post(url, data=body) as response:
        return await response.read()


async def test_a_request_goes_out_whole_and_its_connection_is_used_again() -> None:
    heads = []

    async def echo(head: str, body: bytes, connection: asyncio.Transport) -> None:
        heads.append(head)
        connection.write(whole(body, "200 OK", "set-cookie: replica=1"))

    async with serving(echo) as server, open_session("a-key") as session:
        assert await ask(session, f"{server.url}/api/ask", b"[1]") == b"[1]"
        assert await ask(session, f"{server.url}/api/ask", b"[22]" * 100_000) == b"[22]" * 100_000

    assert server.num_connections == 1
    for head in heads:
        assert head.startswith("POST /api/ask HTTP/1.1\r\n")
        assert "\r\nAuthorization: Bearer a-key\r\n" in head
        assert "\r\nAccept-Encoding: identity\r\n" in head
        assert "replica" not in head


async def test_every_request_at_once_has_a_connection() -> None:
    num_asked = 0
    everyone_asked = asyncio.Event()

    async def wait_for_all(head: str, body: bytes, connection: asyncio.Transport) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 150:
            everyone_asked.set()
        await everyone_asked.wait()
        connection.write(whole(body))

    async with serving(wait_for_all) as server, open_session("") as session:
        bodies = [b"[%d]" % number for number in range(150)]
        assert await asyncio.gather(*(ask(session, server.url, body) for body in bodies)) == bodies


async def test_a_request_that_meets_a_connection_just_closed_is_sent_again() -> None:
    num_answered = 0

    async def answer_first_only(head: str, body: bytes, connection: asyncio.Transport) -> None:
        nonlocal num_answered
        if server.num_connections == 1 and num_answered:
            connection.close()
            return
        num_answered += 1
        connection.write(whole(body))

    async with serving(answer_first_only) as server, open_session("") as session:
        assert await ask(session, server.url) == b"{}"
        assert await ask(session, server.url) == b"{}"

    assert server.num_connections == 2


async def test_a_request_finds_its_way_past_many_connections_just_closed() -> None:
    together = asyncio.Barrier(8)

    async def answer_each_connection_once(head: str, body: bytes, connection: asyncio.Transport) -> None:
        if connection in answered:
            connection.close()
            return
        answered.append(connection)
        if server.num_connections <= 8:
            await together.wait()
        connection.write(whole(body))

    answered: list[asyncio.Transport] = []
    async with serving(answer_each_connection_once) as server, open_session("") as session:
        await asyncio.gather(*(ask(session, server.url) for _ in range(8)))
        assert await ask(session, server.url) == b"{}"

    assert server.num_connections == 9


@pytest.mark.parametrize("method", ["close", "abort"])
async def test_an_answer_that_never_begins_is_told(method: str) -> None:
    async def leave(head: str, body: bytes, connection: asyncio.Transport) -> None:
        getattr(connection, method)()

    async with serving(leave) as server, open_session("") as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await ask(session, server.url)

    assert server.num_connections == 1
