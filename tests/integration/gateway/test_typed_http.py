"""The typed API over HTTP: as JSON, by each method's own path, and as gRPC-Web, as browsers send it."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.inference.v1 import inference_pb2
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter, error_json

SERVICE = "/quire.inference.v1.InferenceService"
PAGE = "http://localhost:3000"
WEB = "application/grpc-web+proto"
# What grpc-web's and Connect's libraries send from a browser.
ASKED_HEADERS = "authorization,content-type,grpc-timeout,x-grpc-web,x-user-agent"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[tuple[Gateway, FakeRouter]]:
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        router = FakeRouter()
        await router.start(f"unix:{directory}/router.sock")
        gateway = await start_gateway(Path(directory), [f"unix:{directory}/router.sock"], "--allowed-headers", "x-own")
        yield gateway, router
        await gateway.stop()
        await router.stop()


@pytest.fixture
def gateway(stack: tuple[Gateway, FakeRouter]) -> Gateway:
    return stack[0]


@pytest.fixture
def router(stack: tuple[Gateway, FakeRouter]) -> FakeRouter:
    return stack[1]


async def ask(gateway: Gateway, method: str, body: Any, **headers: str) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await call(gateway.address, "POST", f"{SERVICE}/{method}", content, headers)


# -- JSON --------------------------------------------------------------------------------------------------------------


async def test_a_method_takes_and_gives_json(gateway: Gateway) -> None:
    reply = await ask(gateway, "ListModels", {})

    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert json.loads(reply.body) == {"models": [{"name": "fake", "maxModelLen": 512}]}


async def test_a_stream_is_an_array(gateway: Gateway) -> None:
    reply = await ask(gateway, "Generate", {"model": "fake", "text": "abc"})

    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert json.loads(reply.body) == [
        {"delta": {"text": "a", "tokenIds": [7]}},
        {"delta": {"text": "bc"}},
        {"final": {"usage": {"promptTokens": 3}}},
    ]


async def test_elements_of_a_stream_come_one_by_one(gateway: Gateway, router: FakeRouter) -> None:
    router.inference.release = asyncio.Event()
    body = b'{"model": "fake", "text": "abc"}'
    host, port = gateway.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"POST {SERVICE}/Generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readuntil(b'[{"delta":{"text":"a","tokenIds":[7]}}')
        router.inference.release.set()
        await reader.readuntil(b'{"final":')
    finally:
        router.inference.release = None
        writer.close()
        await writer.wait_closed()


async def test_both_spellings_of_a_field_are_taken(gateway: Gateway) -> None:
    for name in ("addSpecialTokens", "add_special_tokens"):
        reply = await ask(gateway, "Tokenize", {"model": "gone", "text": "a", name: "no bool"})
        assert reply.status == 400
        assert "no bool" in reply.error["message"]


async def test_an_error_of_the_routers_is_openais_body(gateway: Gateway) -> None:
    for method in ("Tokenize", "Generate"):
        reply = await ask(gateway, method, {"model": "gone", "text": "a"})

        assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
        assert reply.body.decode() == error_json("no model gone", "invalid_request_error", "model", "model_not_found")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"text": ', None, "Unexpected end of string"),
        (b'{"text": ["a"]}', None, "cannot start list"),
        (b"[]", None, "Root element must be a message"),
        (b'{"text": "a", "chat": {}}', None, "oneof field 'input' is already set"),
        (b'{"add_special_tokens": 5}', "add_special_tokens", "add_special_tokens"),
        (b'{"chat": {"messages": [{"role": "x"}, {"role": 7}]}}', "chat.messages[1].role", "7"),
    ],
)
async def test_what_is_no_message_is_refused_with_the_reason(
    gateway: Gateway, body: bytes, param: str | None, words: str
) -> None:
    reply = await ask(gateway, "Tokenize", body)

    assert reply.status == 400
    assert (reply.error["type"], reply.error["param"]) == ("invalid_request_error", param)
    assert words in reply.error["message"]
    for raw in (": :", "type.googleapis.com", "\n"):
        assert raw not in reply.error["message"]


@pytest.mark.parametrize("side", ["NOTHING", "77", 7.5])
async def test_no_enum_takes_an_unknown_name(gateway: Gateway, side: Any) -> None:
    """Unknown numbers reach the router, which refuses them as it does over gRPC."""
    reply = await ask(gateway, "Generate", {"text": "a", "options": {"truncationSide": side}})

    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert "truncation" in reply.error["message"]


async def test_another_type_verb_or_method_is_refused(gateway: Gateway) -> None:
    assert (await ask(gateway, "ListModels", b"", **{"content-type": "text/plain"})).status == 415
    verb = await call(gateway.address, "GET", f"{SERVICE}/ListModels")
    assert (verb.status, verb.headers["allow"]) == (405, "POST")
    assert (await ask(gateway, "Nothing", {})).status == 404
    assert (await ask(gateway, "ListModels/", {})).status == 200


async def test_a_stream_that_breaks_off_has_no_final(gateway: Gateway) -> None:
    reply = await ask(gateway, "Generate", {"model": "fake", "text": "break"})

    assert reply.status == 200
    assert json.loads(reply.body) == [{"delta": {"text": "b", "tokenIds": [7]}}]


# -- gRPC-Web ----------------------------------------------------------------------------------------------------------


def frame(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return struct.pack(">BI", 0, len(content)) + content


def frames(body: bytes) -> list[tuple[int, bytes]]:
    """Flags and content of each."""
    found = []
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        found.append((flags, body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def trailers(content: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in content.decode().splitlines()]
    return {name.lower(): value.strip() for name, _, value in lines}


async def web(gateway: Gateway, method: str, message: Any, content_type: str = WEB) -> Reply:
    body = frame(message)
    if "-text" in content_type:
        body = base64.b64encode(body)
    headers = {"content-type": content_type, "accept": content_type, "x-grpc-web": "1", "origin": PAGE}
    return await call(gateway.address, "POST", f"{SERVICE}/{method}", body, headers)


@pytest.mark.parametrize("content_type", [WEB, "application/grpc-web", "application/grpc-web-text"])
async def test_a_page_reads_messages_and_trailers_from_the_body(gateway: Gateway, content_type: str) -> None:
    reply = await web(gateway, "Generate", inference_pb2.GenerateRequest(model="fake", text="abc"), content_type)

    assert reply.status == 200
    assert reply.headers["content-type"].startswith("application/grpc-web")
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "origin" in reply.headers["vary"]
    body = reply.body
    if "-text" in content_type:
        # Each piece is padded by itself.
        body = b"".join(base64.b64decode(piece + b"=" * (-len(piece) % 4)) for piece in _quartets(body))
    *messages, (flags, last) = frames(body)
    events = [inference_pb2.GenerateResponse.FromString(content) for _, content in messages]
    assert [event.delta.text for event in events] == ["a", "bc", ""]
    assert events[-1].final.usage.prompt_tokens == 3
    assert flags == 0x80
    assert trailers(last)["grpc-status"] == "0"


def _quartets(text: bytes) -> list[bytes]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


async def test_a_page_reads_how_a_call_failed(gateway: Gateway) -> None:
    reply = await web(gateway, "Tokenize", inference_pb2.TokenizeRequest(model="gone"))

    ended = {**reply.headers, **(trailers(reply.body[5:]) if reply.body else {})}
    assert ended["grpc-status"] == "5"
    assert json.loads(ended["quire-error"])["error"]["param"] == "model"
    exposed = reply.headers["access-control-expose-headers"].split(",")
    assert {"grpc-status", "grpc-message", "quire-error"} <= {name.strip() for name in exposed}


async def test_a_page_may_send_what_the_libraries_add(gateway: Gateway) -> None:
    """Although this gateway names the headers that pages may send, and these are not among them."""
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": ASKED_HEADERS,
    }
    reply = await call(gateway.address, "OPTIONS", f"{SERVICE}/Chat", None, asked)

    assert reply.headers["access-control-allow-origin"] == PAGE
    allowed = {name.strip() for name in reply.headers["access-control-allow-headers"].split(",")}
    assert {"content-type", "x-grpc-web", "x-user-agent", "grpc-timeout", "x-own"} <= allowed


async def test_a_strangers_page_is_refused(gateway: Gateway) -> None:
    headers = {"content-type": WEB, "x-grpc-web": "1", "origin": "https://elsewhere.example"}
    body = frame(inference_pb2.ListModelsRequest())
    reply = await call(gateway.address, "POST", f"{SERVICE}/ListModels", body, headers)

    assert reply.status == 403


async def test_a_deadline_and_a_key_reach_the_router(gateway: Gateway, router: FakeRouter) -> None:
    body = frame(inference_pb2.GenerateRequest(model="fake", text="abc"))
    headers = {"content-type": WEB, "authorization": "Bearer k", "x-request-id": "mine", "grpc-timeout": "60S"}
    await call(gateway.address, "POST", f"{SERVICE}/Generate", body, headers)
    assert router.inference.metadata["authorization"] == "Bearer k"
    assert router.inference.seconds_left is not None
    assert 0 < router.inference.seconds_left <= 60

    await ask(gateway, "Generate", {"model": "fake", "text": "abc"}, **headers | {"content-type": "application/json"})
    assert router.inference.metadata["authorization"] == "Bearer k"
    assert router.inference.metadata["x-request-id"] == "mine"
