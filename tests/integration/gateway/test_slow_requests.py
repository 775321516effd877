"""Requests that arrive slowly: cut when --body-timeout is over, whatever still comes of them, and taken before."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter, event, waiting_for

CHAT = "/v1/chat/completions"
MESSAGE = "The request took too long to arrive."
LIMIT_S = 1.0
PAUSE_S = 0.05


@pytest.fixture
async def hasty(short_directory: Path, router: FakeRouter) -> AsyncIterator[Gateway]:
    """Takes a request only if it arrives within LIMIT_S."""
    options = ("--body-timeout", str(LIMIT_S))
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], *options)
    yield gateway
    await gateway.stop()


@pytest.fixture
async def patient(short_directory: Path, router: FakeRouter) -> AsyncIterator[Gateway]:
    options = ("--body-timeout", "3600")
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], *options)
    yield gateway
    await gateway.stop()


async def trickle(address: str, beginning: bytes, rest: bytes, may_end: asyncio.Event | None = None) -> Reply:
    """Sends the beginning of a request at once and the rest byte by byte, until there is an answer. The last byte waits
    for `may_end`."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), HANG_S) as connection:
        connection.sendall(beginning)
        answering = asyncio.create_task(asyncio.to_thread(answer, connection))
        for index, byte in enumerate(rest):
            if may_end is not None and index == len(rest) - 1:
                await may_end.wait()
            # The server may have closed the connection after its answer.
            with contextlib.suppress(ConnectionError):
                connection.sendall(bytes((byte,)))
            if (await asyncio.wait((answering,), timeout=PAUSE_S))[0]:
                break
        return await answering


def answer(connection: socket.socket) -> Reply:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def head(path: str, length: int, content_type: str = "application/json") -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: localhost", f"content-type: {content_type}", f"content-length: {length}")
    return "\r\n".join((*lines, "", "")).encode()


# More than arrives within LIMIT_S, however fast the machine is.
ENDLESS = b" " * 10_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            CHAT,
            {"error": {"message": MESSAGE, "type": "invalid_request_error", "param": None, "code": "request_timeout"}},
        ),
        ("/v1/messages", {"type": "error", "error": {"type": "invalid_request_error", "message": MESSAGE}}),
        ("/api/chat", {"error": MESSAGE}),
    ],
)
async def test_a_body_that_trickles_in_is_408(
    hasty: Gateway, router: FakeRouter, path: str, body: Mapping[str, Any]
) -> None:
    reply = await trickle(hasty.address, head(path, len(ENDLESS)), ENDLESS)
    found = json.loads(reply.body)
    found.pop("request_id", None)
    assert (reply.status, found) == (408, body)
    assert router.calls == 0


async def test_the_same_holds_for_chunks_and_headers(hasty: Gateway) -> None:
    chunked = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    beginnings = {chunked: b"1\r\n \r\n" * 2000, b"GET /v1/models HTTP/1.1\r\nx-a: ": ENDLESS, b"P": b"P" * 10_000}
    for beginning, rest in beginnings.items():
        reply = await trickle(hasty.address, beginning, rest)
        assert (reply.status, reply.error["code"]) == (408, "request_timeout"), beginning


async def test_a_page_s_grpc_call_that_trickles_in_is_deadline_exceeded(hasty: Gateway) -> None:
    path = "/quire.inference.v1.InferenceService/Generate"
    reply = await trickle(hasty.address, head(path, 10_005, "application/grpc-web"), b"\0\0\0\x27\x10" + ENDLESS)
    assert (reply.headers["grpc-status"], reply.headers["grpc-message"]) == ("4", MESSAGE)
    assert json.loads(reply.headers["quire-error"])["error"]["code"] == "request_timeout"


async def test_a_slow_body_is_taken_in_time_and_holds_nobody_up(patient: Gateway, router: FakeRouter) -> None:
    """It takes longer than the bodies above had."""
    content = b'{"stream": false}'.ljust(2 * int(LIMIT_S / PAUSE_S))
    may_end = asyncio.Event()
    slow = asyncio.create_task(trickle(patient.address, head(CHAT, len(content)), content, may_end))
    assert (await call(patient.address, "POST", CHAT, b"{}")).status == 200
    may_end.set()
    reply = await slow
    assert (reply.status, reply.body) == (200, content)


async def test_an_answer_may_take_longer_than_its_request(hasty: Gateway, router: FakeRouter) -> None:
    router.script = waiting_for(asyncio.sleep(2 * LIMIT_S), event("1"), event("2"))
    reply = await call(hasty.address, "POST", CHAT, b"{}")
    # A slow machine can take longer than LIMIT_S to send even this request. Then the router has not seen it.
    while reply.status == 408 and router.calls == 0:
        reply = await call(hasty.address, "POST", CHAT, b"{}")
    assert (reply.status, reply.body) == (200, b"data: 1\n\ndata: 2\n\n")


@contextlib.asynccontextmanager
async def slow_road(address: str, num_fast: int, piece: int) -> AsyncIterator[str]:
    """The address of a port that passes on `num_fast` bytes of a client at once, and later ones slowly, in pieces."""
    host, _, port = address.rpartition(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, upstream = await asyncio.open_connection(host, int(port))

        async def ask() -> None:
            num_sent = 0
            while data := await reader.read(piece if num_sent >= num_fast else num_fast - num_sent):
                upstream.write(data)
                num_sent += len(data)
                if num_sent > num_fast:
                    await asyncio.sleep(PAUSE_S)

        asking = asyncio.create_task(ask())
        try:
            while data := await answers.read(65536):
                writer.write(data)
        finally:
            asking.cancel()
            writer.close()
            upstream.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


# So many bytes come at once: more than a call's headers, and less than its message.
NUM_FAST = 4000
TEXT = "x" * 12_000


async def test_a_grpc_message_that_trickles_in_is_deadline_exceeded(hasty: Gateway) -> None:
    async with slow_road(hasty.address, NUM_FAST, 1) as address, grpc.aio.insecure_channel(address) as channel:
        request = inference_pb2.GenerateRequest(model="fake", text=TEXT)
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), HANG_S)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, MESSAGE)
    error = json.loads(dict(caught.value.trailing_metadata() or ())["quire-error"])["error"]
    assert error["code"] == "request_timeout"


async def test_a_slow_grpc_message_is_taken_in_time(patient: Gateway) -> None:
    piece = int(len(TEXT) / (2 * LIMIT_S / PAUSE_S))
    async with slow_road(patient.address, NUM_FAST, piece) as address, grpc.aio.insecure_channel(address) as channel:
        request = inference_pb2.GenerateRequest(model="fake", text=TEXT)
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        assert "".join([response.delta.text async for response in call]) == TEXT


async def test_a_grpc_call_whose_client_never_says_that_it_has_sent_everything_is_cut(hasty: Gateway) -> None:
    async with grpc.aio.insecure_channel(hasty.address) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(
            "/quire.inference.v1.InferenceService/Generate"
        )()
        with pytest.raises(grpc.aio.AioRpcError, match="too long to arrive") as caught:
            await asyncio.wait_for(call.read(), HANG_S)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
