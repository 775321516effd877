"""Attacks with many clients that read or write very slowly, or leave soon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable

import grpc

from benchmarks.abuse.attack import MODEL, Answer, Attack, Target, http_request, sending
from deploy.envoy.config import GatewayConfig
from quire.inference.v1 import inference_pb2, inference_pb2_grpc

# Seconds for which each client keeps its connection.
SECONDS = 12.0
# Clients that send slowly keep their connections for longer than the gateway's time limit.
TRICKLE_SECONDS = GatewayConfig().body_seconds + 15
_RECEIVE_BUFFER_BYTES = 4096

Client = Callable[[socket.socket], Awaitable[bytes]]


def _endless_stream() -> bytes:
    # Special tokens are shown, because the bundled model soon writes nothing else, and a token without text adds no
    # bytes to the stream.
    body = {
        "model": MODEL,
        "prompt": list(range(10, 42)),
        "max_tokens": 1900,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "stream": True,
    }
    return http_request("/v1/completions", json.dumps(body).encode())


def slow_readers(count: int, seconds: float = SECONDS) -> Attack:
    """Each client requests a long stream, and reads the status and then one byte per second."""
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
    """Each client requests a long stream and does not read it."""
    request = _endless_stream()

    async def client(connection: socket.socket) -> bytes:
        await asyncio.get_running_loop().sock_sendall(connection, request)
        await asyncio.sleep(seconds)
        # Requests that still wait in the server have no answer yet.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                return await _received(connection, 400)
        return b""

    return _many(count, client)


def trickling_bodies(count: int, seconds: float = TRICKLE_SECONDS) -> Attack:
    """Each client sends one byte of its body per second."""
    head, _, _ = http_request("/v1/completions", b" " * 1000).rpartition(b" " * 1000)
    return _many(count, _trickling(head, seconds), must_answer=True)


def trickling_messages(count: int, seconds: float = TRICKLE_SECONDS) -> Attack:
    """Each client sends one byte of a gRPC-Web message per second."""
    path = "/quire.inference.v1.InferenceService/Generate"
    lines = (f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/grpc-web", "content-length: 1005")
    # The message's length, and the beginning of a text of 997 bytes.
    message = b"\0" + (1000).to_bytes(4, "big") + b"\x12\xe5\x07"
    beginning = "\r\n".join((*lines, "", "")).encode() + message
    return _many(count, _trickling(beginning, seconds), must_answer=True)


def trickling_headers(count: int, seconds: float = TRICKLE_SECONDS) -> Attack:
    """Each client sends one byte of a header per second."""
    beginning = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-a: "
    return _many(count, _trickling(beginning, seconds), must_answer=True)


def churned_connections(count: int, at_once: int = 50) -> Attack:
    """Connections that are opened and closed: a third without a request, a third in the middle of one, and a third
    before its answer. At most `at_once` are open."""
    request = _endless_stream()
    sent = (b"", request[: len(request) // 2], request)

    async def attack(target: Target) -> Answer:
        numbers = iter(range(count))

        async def churn() -> int:
            opened = 0
            for number in numbers:
                with contextlib.closing(_connection()) as connection, contextlib.suppress(OSError):
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(connection, (target.host, target.port))
                    opened += 1
                    await loop.sock_sendall(connection, sent[number % len(sent)])
            return opened

        opened = sum(await asyncio.gather(*(churn() for _ in range(at_once))))
        answer = await sending(http_request("/v1/models"))(target)
        return Answer(answer.status if opened == count else 0, f"{opened} of {count} connections, then {answer.text}")

    return attack


def cancelled_calls(count: int, num_connections: int = 20, at_once: int = 200) -> Attack:
    """gRPC calls that are cancelled after 2 ms. At most `at_once` of them are open."""

    async def attack(target: Target) -> Answer:
        numbers = iter(range(count))
        async with contextlib.AsyncExitStack() as stack:
            options = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each channel
            address = f"{target.host}:{target.port}"
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
                for _ in range(num_connections)
            ]
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
            stubs = [inference_pb2_grpc.InferenceServiceStub(channel) for channel in channels]

            async def cancel() -> None:
                for number in numbers:
                    call = stubs[number % num_connections].Generate(
                        inference_pb2.GenerateRequest(model=MODEL, text="Hello!")
                    )
                    await asyncio.sleep(0.002)
                    call.cancel()

            await asyncio.gather(*(cancel() for _ in range(at_once)))
        return await sending(http_request("/v1/models"))(target)

    return attack


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
    """Returns an attack that runs `count` clients in parallel.

    The status of its answer is the lowest status other than 200 that a client got, otherwise 200. It is 0 if no client
    got an answer, or if `must_answer` is set and a client got none.
    """

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
