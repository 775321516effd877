"""Asking a server that is busy, away, slow, or has an answer."""

from __future__ import annotations

import asyncio

import pytest

from quire.batch import server as server_module
from quire.batch.format import Answer, BatchRequest, RequestError
from quire.batch.server import Server, open_session
from tests.unit.bench.scripted_server import serving, whole

REQUEST = BatchRequest("a", "/v1/completions?x=%2F", b'{"prompt": "x"}')


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "FIRST_DELAY_S", 0.001)


async def ask(url: str, *, key: str | None = None, request_timeout: float = 60, retry_timeout: float = 60) -> Answer:
    session, root = open_session(url, key)
    async with session:
        server = Server(session, root, request_timeout=request_timeout, retry_timeout=retry_timeout)
        return await server.ask(REQUEST)


async def test_the_request_goes_out_as_it_is() -> None:
    seen = []

    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        seen.append((head, body))
        connection.write(whole(b"{}", "200 OK", "x-request-id: req-7"))

    async with serving(script) as running:
        assert await ask(running.url, key="a-key") == Answer(200, "req-7", b"{}")

    ((head, body),) = seen
    assert head.startswith("POST /v1/completions?x=%2F HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer a-key\r\n" in head
    assert "\r\nContent-Type: application/json\r\n" in head
    assert body == REQUEST.body


async def test_a_busy_or_broken_server_is_asked_again() -> None:
    answers = iter(
        [
            whole(b"busy", "429 Too Many Requests", "retry-after: 0"),
            whole(b"away", "503 Service Unavailable", "retry-after: Wed, 21 Oct 2015 07:28:00 GMT"),
            whole(b"away", "502 Bad Gateway"),
            None,
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
            whole(b"done"),
        ]
    )

    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        answer = next(answers)
        connection.write(answer or b"")
        if answer is None or answer.endswith(b"half"):
            connection.close()

    async with serving(script) as running:
        assert (await ask(running.url)).body == b"done"
    assert next(answers, "none left") == "none left"


async def test_the_servers_own_word_on_when_to_come_back_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    answers = iter([whole(b"", "429 Slow", "retry-after: 7"), whole(b"", "429 Slow", "retry-after: 900"), whole(b"ok")])

    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        connection.write(next(answers))

    async with serving(script) as running:
        assert (await ask(running.url)).body == b"ok"
    assert pauses == [7.0, server_module.LONGEST_DELAY_S]


@pytest.mark.parametrize("status", ["200 OK", "400 Bad", "401 No", "404 None", "413 Long", "500 Fault", "302 Found"])
async def test_any_other_answer_is_the_answer(status: str) -> None:
    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        connection.write(whole(b"word", status, "location: /elsewhere"))

    async with serving(script) as running:
        assert await ask(running.url) == Answer(int(status[:3]), "", b"word")
        assert running.num_connections == 1


async def test_after_the_time_for_tries_the_last_refusal_is_the_answer() -> None:
    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        connection.write(whole(b"busy", "429 Too Many Requests"))

    async with serving(script) as running:
        assert (await ask(running.url, retry_timeout=0)).status == 429


async def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(RequestError, match=r"the server did not answer: .*Cannot connect") as raised:
        await ask("http://127.0.0.1:1", retry_timeout=0)
    assert raised.value.code == "unavailable"
    with pytest.raises(RequestError, match="the server did not answer"):
        await ask("unix:/nowhere/at.sock", retry_timeout=0)


async def test_an_answer_that_never_comes_is_given_up() -> None:
    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        await asyncio.Event().wait()

    async with serving(script) as running:
        with pytest.raises(RequestError, match=r"no answer came within 0\.05 s") as raised:
            await ask(running.url, request_timeout=0.05)
    assert raised.value.code == "timeout"


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_ANSWER_BYTES", 1000)

    async def script(head: str, body: bytes, connection: asyncio.Transport) -> None:
        connection.write(whole(b"x" * 2000))

    async with serving(script) as running:
        with pytest.raises(RequestError, match="more than 1000 bytes"):
            await ask(running.url)
