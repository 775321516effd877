"""OpenAI's HTTP API through the gateway: bodies pass untouched, streams pass as they come, errors have one shape."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.api.httpbody_pb2 import HttpBody
from openai import AsyncOpenAI

from shared.message_size import DEFAULT_MAX_BODY_BYTES
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import Context, FakeRouter, aborting, body, error_json, event, waiting_for

CHAT = "/v1/chat/completions"

# One gateway and one router for all of these tests.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[tuple[Gateway, FakeRouter]]:
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        router = FakeRouter()
        await router.start(f"unix:{directory}/router.sock")
        gateway = await start_gateway(Path(directory), [f"unix:{directory}/router.sock"])
        yield gateway, router
        await gateway.stop()
        await router.stop()


@pytest.fixture
def gateway(stack: tuple[Gateway, FakeRouter]) -> Gateway:
    return stack[0]


@pytest.fixture
def router(stack: tuple[Gateway, FakeRouter]) -> FakeRouter:
    stack[1].reset()
    return stack[1]


async def test_json_bodies_pass_untouched_in_both_directions(gateway: Gateway, router: FakeRouter) -> None:
    content = '{"model": "m",\n  "messages": [{"role": "user", "content": "ünï \\u00fc 🜚"}], "n": 1e0}'.encode()

    reply = await call(gateway.address, "POST", CHAT, content)

    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/json", content)
    assert not [name for name in reply.headers if name.startswith(("grpc-", "quire-", "x-envoy-"))]


async def test_credentials_and_request_id_reach_the_router(gateway: Gateway, router: FakeRouter) -> None:
    reply = await call(gateway.address, "POST", CHAT, b"{}", {"authorization": "Bearer k", "x-request-id": "mine"})

    assert router.metadata["authorization"] == "Bearer k"
    assert router.metadata["x-request-id"] == "mine" == reply.headers["x-request-id"]


async def test_no_client_may_tell_envoy_what_to_do(gateway: Gateway, router: FakeRouter) -> None:
    """Not even from this machine, which Envoy would trust by itself: time limits, retries and paths are ours."""
    orders = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-retry-on": "5xx,retriable-status-codes",
        "x-envoy-retriable-status-codes": "503",
        "x-envoy-max-retries": "5",
        "x-envoy-original-path": "/quire.made.up",
    }

    async def slow(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        await asyncio.sleep(0.1)
        yield body("{}")

    router.script = slow
    assert (await call(gateway.address, "POST", CHAT, b"{}", orders)).status == 200

    router.reset()
    router.script = aborting(grpc.StatusCode.UNAVAILABLE, "busy")
    assert (await call(gateway.address, "POST", CHAT, b"{}", orders)).status == 503
    assert router.calls == 1
    assert not orders.items() & router.metadata.items()


@pytest.mark.parametrize("head", ["host: localhost\r\n", ""], ids=["with a host", "without"])
async def test_http_1_0_is_answered(gateway: Gateway, router: FakeRouter, head: str) -> None:
    """A body without a length ends with the connection, so whole and streamed answers are read to the end of it."""

    async def streamed(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        yield event("1")
        yield event("[DONE]")

    async def ask(request: str) -> bytes:
        host, _, port = gateway.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.encode())
        answer = await asyncio.wait_for(reader.read(), HANG_S)
        writer.close()
        return answer

    health = await ask(f"GET /health HTTP/1.0\r\n{head}\r\n")
    assert health.partition(b"\r\n")[0].endswith(b" 200 OK")
    assert health.endswith(b'\r\n\r\n{"router": "fake"}')
    router.script = streamed
    events = await ask(f"POST {CHAT} HTTP/1.0\r\n{head}content-length: 2\r\n\r\n{{}}")
    assert events.partition(b"\r\n")[0].endswith(b" 200 OK")
    assert events.endswith(b"\r\n\r\ndata: 1\n\ndata: [DONE]\n\n")


async def test_a_request_without_an_id_gets_one(gateway: Gateway, router: FakeRouter) -> None:
    reply = await call(gateway.address, "POST", CHAT, b"{}")

    assert len(reply.headers["x-request-id"]) == 36
    assert reply.headers["x-request-id"] == router.metadata["x-request-id"]


async def test_events_arrive_one_by_one(gateway: Gateway, router: FakeRouter) -> None:
    """The router sends its second event only after the client has the first: nothing on the way holds them back."""
    release = asyncio.Event()
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": []}
    first, then = event(json.dumps({**chunk, "id": "first"})), event(json.dumps({**chunk, "id": "second"}))

    async def script(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        async for message in waiting_for(release.wait(), first, then)(request, context):
            yield message
        yield event("[DONE]")

    router.script = script
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )

        received = aiter(stream)
        assert (await asyncio.wait_for(anext(received), HANG_S)).id == "first"
        release.set()
        assert [chunk.id async for chunk in received] == ["second"]


async def test_event_bytes_pass_untouched(gateway: Gateway, router: FakeRouter) -> None:
    async def script(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        yield event('{"a":  "ü"}')
        yield event("[DONE]")

    router.script = script
    reply = await call(gateway.address, "POST", CHAT, b"{}")

    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.body == 'data: {"a":  "ü"}\n\ndata: [DONE]\n\n'.encode()


async def test_a_model_name_may_hold_slashes(gateway: Gateway) -> None:
    for path in ("/v1/models/org/model", "/v1/models/org%2Fmodel", "/v1/models/org%2Fmodel?unknown=1"):
        reply = await call(gateway.address, "GET", path)
        assert (reply.status, json.loads(reply.body)) == (200, {"id": "org/model"}), path


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.UNAUTHENTICATED, 401),
        (grpc.StatusCode.NOT_FOUND, 404),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (grpc.StatusCode.INTERNAL, 500),
        (grpc.StatusCode.UNAVAILABLE, 503),
    ],
)
async def test_the_routers_error_body_reaches_the_client(
    gateway: Gateway, router: FakeRouter, code: grpc.StatusCode, status: int
) -> None:
    content = error_json('it is "bad"', "some_error", "temperature", "some_code")
    router.script = aborting(code, "ignored", ("quire-error", content), ("retry-after", "7"))

    reply = await call(gateway.address, "POST", CHAT, b"{}")

    assert (reply.status, reply.body.decode()) == (status, content)
    assert reply.error["param"] == "temperature"
    assert reply.headers["retry-after"] == "7"
    # A router that answers has answered: the call is not tried elsewhere.
    assert router.calls == 1
    assert not [name for name in reply.headers if name.startswith(("grpc-", "quire-"))]


async def test_an_error_without_a_body_of_its_own_is_shaped(gateway: Gateway, router: FakeRouter) -> None:
    router.script = aborting(grpc.StatusCode.INTERNAL, 'a "quoted"\nüber 100% failure')

    reply = await call(gateway.address, "POST", CHAT, b"{}")

    assert reply.status == 500
    assert reply.error == {
        "message": 'a "quoted"\nüber 100% failure',
        "type": "server_error",
        "param": None,
        "code": None,
    }


async def test_a_status_alone_has_the_code_that_the_router_would_give(gateway: Gateway, router: FakeRouter) -> None:
    for code, expected in (
        (grpc.StatusCode.RESOURCE_EXHAUSTED, (429, "rate_limit_error", "rate_limit_exceeded")),
        (grpc.StatusCode.UNAVAILABLE, (503, "server_error", "unavailable")),
        (grpc.StatusCode.DEADLINE_EXCEEDED, (504, "server_error", "timeout")),
        (grpc.StatusCode.INVALID_ARGUMENT, (400, "invalid_request_error", None)),
    ):
        router.script = aborting(code, "no")
        reply = await call(gateway.address, "POST", CHAT, b"{}")
        assert (reply.status, reply.error["type"], reply.error["code"]) == expected


async def test_a_time_limit_of_the_clients_own_ends_as_the_servers(gateway: Gateway, router: FakeRouter) -> None:
    async def silent(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        await asyncio.Event().wait()
        yield body("")

    router.script = silent
    reply = await call(gateway.address, "POST", CHAT, b"{}", {"grpc-timeout": "50m"})

    assert (reply.status, reply.error["type"], reply.error["code"]) == (504, "server_error", "timeout")


async def test_an_upgrade_is_refused_by_name_and_http2s_is_ignored(gateway: Gateway, router: FakeRouter) -> None:
    """Java's client offers HTTP/2 with its first request."""
    reply = await call(gateway.address, "GET", "/health", headers={"connection": "upgrade", "upgrade": "websocket"})
    assert (reply.status, reply.error["code"]) == (403, "upgrade_not_supported")

    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAA"}
    assert (await call(gateway.address, "POST", CHAT, b"{}", offer)).status == 200


async def test_an_unknown_path_is_404(gateway: Gateway, router: FakeRouter) -> None:
    reply = await call(gateway.address, "POST", "/v1/nothing", b"{}")

    assert (reply.status, reply.error["code"]) == (404, "unknown_url")
    assert "POST /v1/nothing" in reply.error["message"]
    assert router.calls == 0


async def test_the_grpc_path_of_a_method_is_no_http_path(gateway: Gateway, router: FakeRouter) -> None:
    reply = await call(gateway.address, "POST", "/quire.openai.v1.OpenAIService/CreateChatCompletion", b"{}")

    assert (reply.status, router.calls) == (404, 0)


async def test_a_wrong_method_is_405_and_tells_the_right_one(gateway: Gateway, router: FakeRouter) -> None:
    for method, path, allowed in (
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/models/m", "GET"),
        ("POST", "/health", "GET, HEAD"),
    ):
        reply = await call(gateway.address, method, path)
        assert (reply.status, reply.headers["allow"]) == (405, allowed)
        assert reply.error["code"] == "method_not_supported"
    assert router.calls == 0


async def test_a_body_of_4_megabytes_passes_and_one_byte_more_does_not(gateway: Gateway, router: FakeRouter) -> None:
    largest = b" " * DEFAULT_MAX_BODY_BYTES

    passed = await call(gateway.address, "POST", "/tokenize", largest)
    refused = await call(gateway.address, "POST", "/tokenize", largest + b" ")

    assert (passed.status, passed.body == largest) == (200, True)
    assert (refused.status, refused.error["code"]) == (413, "request_too_large")


async def test_a_body_of_20_megabytes_is_413(gateway: Gateway, router: FakeRouter) -> None:
    reply = await call(gateway.address, "POST", CHAT, b" " * 20_000_000)

    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert router.calls == 0


async def test_headers_over_the_limit_are_431(gateway: Gateway) -> None:
    reply = await call(gateway.address, "GET", "/health", headers={"x-large": "a" * 40_000})

    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")


async def test_a_client_that_leaves_cancels_the_routers_call(gateway: Gateway, router: FakeRouter) -> None:
    router.script = waiting_for(asyncio.Event().wait(), event("1"), event("2"))
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{{}}".encode())
    await asyncio.wait_for(reader.readuntil(b"data: 1"), HANG_S)
    assert not router.cancelled.is_set()

    writer.close()

    await asyncio.wait_for(router.cancelled.wait(), HANG_S)
