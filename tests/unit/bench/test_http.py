"""The load generator's HTTP client: answers however they are split, connections that are kept, cut and closed."""

from __future__ import annotations

import asyncio

import pytest

from quire.bench.http import AnswerError, AnswerParser, Client
from tests.unit.bench.scripted_server import STREAM_END, STREAM_HEAD, chunk, serving, whole

ANSWERS = {
    "length": (whole(b"hello world"), b"hello world", 200),
    "empty": (whole(b"", "503 Service Unavailable"), b"", 503),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 204),
    "chunks": (STREAM_HEAD + chunk(b"hello ") + chunk(b"wor\r\nld") + STREAM_END, b"hello wor\r\nld", 200),
    "extensions and trailers": (
        STREAM_HEAD + b"5;a=b\r\nhello\r\n0;last\r\nx-checksum: 1\r\n\r\n",
        b"hello",
        200,
    ),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + whole(b"hello"), b"hello", 200),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_is_the_same_however_it_is_split(name: str, size: int) -> None:
    data, body, status = ANSWERS[name]
    parser = AnswerParser()
    pieces = []
    for start in range(0, len(data), size):
        assert not parser.is_complete
        pieces.append(parser.feed(data[start : start + size]))

    assert (b"".join(pieces), parser.status) == (body, status)
    assert parser.is_complete
    assert parser.keeps_connection


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = AnswerParser()

    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") + parser.feed(b"lo") == b"hello"
    assert not parser.is_complete
    parser.end()
    assert parser.is_complete
    assert not parser.keeps_connection


@pytest.mark.parametrize("data", [whole(b"hello")[:-1], STREAM_HEAD + chunk(b"hello"), b"HTTP/1.1 200", b""])
def test_an_answer_that_is_cut_is_told(data: bytes) -> None:
    parser = AnswerParser()
    parser.feed(data)

    with pytest.raises(AnswerError, match="in the middle"):
        parser.end()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 two\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        STREAM_HEAD + b"5\r\nhello world\r\n",
        STREAM_HEAD + b"xyz\r\n",
        b"x" * 100_000,
    ],
)
def test_what_is_no_answer_is_told(data: bytes) -> None:
    with pytest.raises(AnswerError):
        AnswerParser().feed(data)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://host:99999999"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        Client(url, {})


async def ask(client: Client, body: bytes = b"{}") -> tuple[int, bytes]:
    pieces: list[bytes] = []
    status = await client.send(client.request("POST", "/ask", body), lambda _status, data, _now: pieces.append(data))
    return status, b"".join(pieces)


async def test_a_request_goes_out_whole_and_its_connection_is_used_again() -> None:
    heads = []

    async def echo(head: str, body: bytes, connection: asyncio.Transport) -> None:
        heads.append(head)
        connection.write(whole(body))

    async with serving(echo) as server:
        client = Client(f"{server.url}/api/", {"authorization": "Bearer key"})
        assert await ask(client, b"[1]") == (200, b"[1]")
        assert await ask(client, b"[22]") == (200, b"[22]")
        client.close()

    assert server.num_connections == 1
    assert heads[0].startswith("POST /api/ask HTTP/1.1\r\n")
    assert f"\r\nhost: {server.url.removeprefix('http://')}\r\n" in heads[0]
    assert "\r\nauthorization: Bearer key\r\n" in heads[0]


async def test_every_request_at_once_has_a_connection() -> None:
    asked = 0
    everyone_asked = asyncio.Event()

    async def wait_for_all(head: str, body: bytes, connection: asyncio.Transport) -> None:
        nonlocal asked
        asked += 1
        if asked == 150:
            everyone_asked.set()
        await everyone_asked.wait()
        connection.write(whole(body))

    async with serving(wait_for_all) as server:
        client = Client(server.url, {})
        bodies = [b"[%d]" % number for number in range(150)]
        assert await asyncio.gather(*(ask(client, body) for body in bodies)) == [(200, body) for body in bodies]
        client.close()


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async def answer_and_close(head: str, body: bytes, connection: asyncio.Transport) -> None:
        connection.write(whole(body, "200 OK", "connection: close"))
        connection.close()

    async with serving(answer_and_close) as server:
        client = Client(server.url, {})
        assert [await ask(client) for _ in range(3)] == [(200, b"{}")] * 3

    assert server.num_connections == 3


async def test_a_request_that_meets_a_connection_just_closed_is_sent_again() -> None:
    answered = 0

    async def answer_first_only(head: str, body: bytes, connection: asyncio.Transport) -> None:
        nonlocal answered
        if server.num_connections == 1 and answered:
            connection.close()
            return
        answered += 1
        connection.write(whole(body))

    async with serving(answer_first_only) as server:
        client = Client(server.url, {})
        assert await ask(client) == (200, b"{}")
        assert await ask(client) == (200, b"{}")
        client.close()

    assert server.num_connections == 2


async def test_an_answer_that_never_begins_is_told() -> None:
    async def close(head: str, body: bytes, connection: asyncio.Transport) -> None:
        connection.close()

    async with serving(close) as server:
        with pytest.raises(AnswerError, match="closed the connection"):
            await ask(Client(server.url, {}))

    assert server.num_connections == 1


async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    has_asked, is_gone = asyncio.Event(), asyncio.Event()

    async def never_answer(head: str, body: bytes, connection: asyncio.Transport) -> None:
        has_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_gone.set()

    async with serving(never_answer) as server:
        asking = asyncio.create_task(ask(Client(server.url, {})))
        await has_asked.wait()
        asking.cancel()
        await asyncio.wait_for(is_gone.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_what_the_taker_raises_ends_the_request() -> None:
    async def answer(head: str, body: bytes, connection: asyncio.Transport) -> None:
        connection.write(whole(body))

    def refuse(status: int, data: bytes, now: float) -> None:
        raise AnswerError(f"no use for {data!r}")

    async with serving(answer) as server:
        client = Client(server.url, {})
        with pytest.raises(AnswerError, match="no use"):
            await client.send(client.request("POST", "/", b"{}"), refuse)
        assert await ask(client) == (200, b"{}")
        client.close()
