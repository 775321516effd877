"""Clients that read or write almost nothing, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable

from benchmarks.abuse.attack import MODEL, Answer, Attack, Target, http_request
from deploy.envoy.config import GatewayConfig

# For how long each of them keeps its connection.
SECONDS = 12.0
# Those whose requests trickle in keep it for longer than the gateway lets them.
TRICKLE_SECONDS = GatewayConfig().body_seconds + 15
_RECEIVE_BUFFER_BYTES = 4096

Client = Callable[[socket.socket], Awaitable[bytes]]


def _endless_stream() -> bytes:
    body = {"model": MODEL, "prompt": list(range(10, 42)), "max_tokens": 1900, "ignore_eos": True, "stream": True}
    return http_request("/v1/completions", json.dumps(body).encode())


def slow_readers(count: int, seconds: float = SECONDS) -> Attack:
    """Each asks for a long stream, and reads its status and then a byte per second of it."""
    request = _endless_stream()

    async def client(connection: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, request)
        answer, end = b"", loop.time() + seconds
        while loop.time() < end:
            piece = await _received(connection, 1 if answer else len("HTTP/1.1 200"))
            if not piece:
                break
            answer += piece
            await asyncio.sleep(1)
        return answer

    return _many(count, client)


def silent_readers(count: int, seconds: float = SECONDS) -> Attack:
    """Each asks for a long stream and reads nothing of it."""
    request = _endless_stream()

    async def client(connection: socket.socket) -> bytes:
        await asyncio.get_running_loop().sock_sendall(connection, request)
        await asyncio.sleep(seconds)
        # Nothing has come for those that have no place yet.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                return await _received(connection, 400)
        return b""

    return _many(count, client)


def trickling_bodies(count: int, seconds: float = TRICKLE_SECONDS) -> Attack:
    """Each sends a byte of its body per second."""
    head, _, _ = http_request("/v1/completions", b" " * 1000).rpartition(b" " * 1000)
    return _many(count, _trickling(head, seconds), must_answer=True)


def trickling_messages(count: int, seconds: float = TRICKLE_SECONDS) -> Attack:
    """Each sends a byte of a gRPC-Web message per second."""
    path = "/quire.inference.v1.InferenceService/Generate"
    lines = (f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/grpc-web", "content-length: 1005")
    # The message's length, and the beginning of a text of 997 bytes.
    message = b"\0" + (1000).to_bytes(4, "big") + b"\x12\xe5\x07"
    beginning = "\r\n".join((*lines, "", "")).encode() + message
    return _many(count, _trickling(beginning, seconds), must_answer=True)


def trickling_headers(count: int, seconds: float = TRICKLE_SECONDS) -> Attack:
    """Each sends a byte of a header per second."""
    beginning = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-a: "
    return _many(count, _trickling(beginning, seconds), must_answer=True)


def _trickling(beginning: bytes, seconds: float) -> Client:
    async def client(connection: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, beginning)
        answered = asyncio.create_task(_received(connection, 400))
        end = loop.time() + seconds
        try:
            while loop.time() < end and not answered.done():
                await loop.sock_sendall(connection, b" ")
                await asyncio.wait((answered,), timeout=1)
            return answered.result() if answered.done() else b""
        except OSError:
            return await answered
        finally:
            answered.cancel()

    return client


def _many(count: int, client: Client, *, must_answer: bool = False) -> Attack:
    """All of them at once. The answer has the lowest status other than 200, if there is one, and 0 if there is none, or
    where one of them has none and `must_answer` is set."""

    async def attack(target: Target) -> Answer:
        connections = [_connection() for _ in range(count)]
        try:
            answers = await asyncio.gather(*(_run(client, target, one) for one in connections))
        finally:
            for one in connections:
                one.close()
        statuses = [int(answer[9:12]) for answer in answers if answer[:5] == b"HTTP/" and answer[9:12].isdigit()]
        if must_answer:
            statuses += [0] * (count - len(statuses))
        served = sum(status == 200 for status in statuses)
        others = sorted(set(statuses) - {200})
        text = f"{served} of {count} began" + (f", others {others}" if others else "")
        return Answer(others[0] if others else 200 if served else 0, text)

    return attack


async def _run(client: Client, target: Target, connection: socket.socket) -> bytes:
    try:
        await asyncio.get_running_loop().sock_connect(connection, (target.host, target.port))
        return await client(connection)
    except OSError:
        return b""


def _connection() -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    connection.setblocking(False)
    return connection


async def _received(connection: socket.socket, size: int) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(connection, size)
    except OSError:
        return b""
