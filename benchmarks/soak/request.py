"""One request of the soak test: how to send it, and how to check and compare its answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc

from quire.bench.session import open_session
from quire.client.aio import AsyncClient
from quire.client.errors import QuireError

# Maximum length of an answer in a fault's text.
_MAX_CHARACTERS = 300
_MAX_CONNECTION_ATTEMPTS = 20


class WrongAnswerError(Exception):
    """The answer is wrong for the request."""


class BusyError(Exception):
    """The server is busy and asks the client to retry after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Wire:
    """One client's connections to a stack."""

    url: str
    session: aiohttp.ClientSession
    client: AsyncClient


@contextlib.asynccontextmanager
async def wired(host: str, port: int) -> AsyncIterator[Wire]:
    """Opens connections and closes them at the end of the block, so that none is open at a quiet point."""
    async with open_session("") as session, AsyncClient(f"{host}:{port}", max_retries=0) as client:
        await _connect(client)
        yield Wire(f"http://{host}:{port}", session, client)


async def _connect(client: AsyncClient) -> None:
    """Connects with retries. On a busy machine a handshake may take so long that gRPC gives up the connection and fails
    the call. A connection that is lost later is a fault."""
    for _ in range(_MAX_CONNECTION_ATTEMPTS):
        with contextlib.suppress(QuireError):
            await client.models()
            return


@dataclass(frozen=True, slots=True)
class Request:
    # Kind of the request. Faults are counted by kind.
    name: str
    # Sends the request and returns the answer's content for comparison. Raises WrongAnswerError or BusyError.
    send: Callable[[Wire], Awaitable[str]]
    # Requests with the same key must get the same answer. None: answers are not compared.
    key: str | None = None


# Extracts an answer's content from its body.
Said = Callable[[bytes], Any]


def over_http(
    name: str,
    path: str,
    body: Mapping[str, Any] | bytes | None = None,
    *,
    said: Said | None = None,
    status: int = 200,
) -> Request:
    """Returns an HTTP request. `said`: extracts the content that must be the same each time, streamed or whole. None:
    answers are not compared."""

    async def send(wire: Wire) -> str:
        async with _asking(wire, path, body) as response:
            text = await response.read()
            _check(response, text, status)
        try:
            return "" if said is None else json.dumps(said(text))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise WrongAnswerError(f"{type(error).__name__}: {error}: {_shortened(text)}") from error

    fields = body if isinstance(body, Mapping) else {}
    asked = {field: value for field, value in fields.items() if not field.startswith("stream")}
    return Request(name, send, None if said is None else f"{path} {json.dumps(asked, sort_keys=True)}")


def left_after(name: str, path: str, body: Mapping[str, Any], pieces: int) -> Request:
    """Returns a request whose client closes the connection after `pieces` pieces of the answer."""

    async def send(wire: Wire) -> str:
        async with _asking(wire, path, body) as response:
            if response.status != 200:
                _check(response, await response.read(), 200)
            for _ in range(pieces):
                await response.content.readany()
            response.close()
        return ""

    return Request(name, send)


def left_within(name: str, path: str, body: Mapping[str, Any], seconds: float) -> Request:
    """Returns a request whose client closes the connection after `seconds`, unless the answer arrives earlier."""

    async def send(wire: Wire) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), _asking(wire, path, body) as response:
                _check(response, await response.read(), 200)
        return ""

    return Request(name, send)


def over_grpc(
    name: str,
    call: Callable[[AsyncClient], Awaitable[Any]],
    *,
    key: str | None = None,
    status: grpc.StatusCode = grpc.StatusCode.OK,
) -> Request:
    """Returns a gRPC request. `call`: makes the call and returns the content of the answer."""

    async def send(wire: Wire) -> str:
        try:
            said = json.dumps(await call(wire.client))
        except QuireError as error:
            if error.status is status:
                return ""
            if error.status is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None:
                raise BusyError(error.retry_after) from error
            raise WrongAnswerError(f"{error.status.name}: {_shortened(error.message.encode())}") from error
        if status is not grpc.StatusCode.OK:
            raise WrongAnswerError(f"OK instead of {status.name}")
        return said

    return Request(name, send, None if key is None else f"{name} {key}")


def _asking(wire: Wire, path: str, body: Mapping[str, Any] | bytes | None) -> Any:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {} if data is None else {"content-type": "application/json"}
    return wire.session.request("GET" if data is None else "POST", wire.url + path, data=data, headers=headers)


def _check(response: aiohttp.ClientResponse, text: bytes, status: int) -> None:
    if response.status == 429:
        after = response.headers.get("retry-after", "")
        if not after.isdigit():
            raise WrongAnswerError(f"429 without Retry-After: {_shortened(text)}")
        raise BusyError(float(after))
    if response.status != status:
        raise WrongAnswerError(f"status {response.status} instead of {status}: {_shortened(text)}")
    if status >= 400 and b'"error"' not in text:
        raise WrongAnswerError(f"status {status} without an error: {_shortened(text)}")


def _shortened(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:_MAX_CHARACTERS]
