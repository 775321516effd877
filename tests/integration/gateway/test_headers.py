"""Headers and paths of every size and content: those within the limits work, others are refused by the gateway with a
sentence, and none does harm to other requests."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.rpc import status_pb2

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.waiting import HANG_S
from tests.integration.gateway import http2
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter
from tests.integration.gateway.test_grpc_errors import assert_details

MODELS = "/v1/models"
KIB = 1024
# Several of each: with gRPC's default limits some requests of these sizes passed and some did not.
WITHIN = (7, 9, 10, 11, 12, 13, 14, 15, 17, 24, 31)
BEYOND = (33, 60, 100)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """One for all tests: none of them may do harm to the next."""
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        router = FakeRouter()
        await router.start(f"unix:{directory}/router.sock")
        gateway = await start_gateway(Path(directory), [f"unix:{directory}/router.sock"])
        yield gateway
        await gateway.stop()
        await router.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def channel(gateway: Gateway) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        yield channel


async def models(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str | bytes], ...] = ()) -> list[str]:
    """A typed call with a deadline, and compressed: it has every header that gRPC's clients send."""
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = inference_pb2.ListModelsRequest()
    reply = await stub.ListModels(request, timeout=HANG_S, metadata=metadata, compression=grpc.Compression.Gzip)
    return [model.name for model in reply.models]


async def raw(gateway: Gateway, head: bytes) -> Reply:
    """Of an HTTP/1.1 request that http.client would not send. `head`: without its last two line ends."""
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head + b"\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(HANG_S):
            lines = await reader.readuntil(b"\r\n\r\n")
            status, *fields = lines.decode().rstrip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    finally:
        writer.close()
    return Reply(int(status.split(" ")[1]), headers, body)


async def test_headers_work_up_to_the_limit(gateway: Gateway, channel: grpc.aio.Channel) -> None:
    for size in WITHIN:
        value = "a" * (size * KIB)
        assert (await call(gateway.address, "GET", MODELS, headers={"x-a": value})).status == 200
        body = await http2.request(gateway.address, b"GET", MODELS.encode(), [(b"x-a", value.encode())])
        assert json.loads(body)["data"] == [{"id": "fake"}]
        assert await models(channel, (("x-a", value),)) == ["fake"]


async def test_larger_headers_are_refused_with_a_sentence(gateway: Gateway, channel: grpc.aio.Channel) -> None:
    message = "The request headers are too large: at most 32 KiB are allowed."
    for size in BEYOND:
        value = "a" * (size * KIB)
        reply = await call(gateway.address, "GET", MODELS, headers={"x-a": value})
        assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
        assert reply.error["message"] == message
        body = await http2.request(gateway.address, b"GET", MODELS.encode(), [(b"x-a", value.encode())])
        assert json.loads(body)["error"] == reply.error
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await models(channel, (("x-a", value),))
        # Not RESOURCE_EXHAUSTED, after which clients try again.
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, message)
        assert json.loads(dict(refused.value.trailing_metadata() or ())["quire-error"])["error"] == reply.error
        assert_details(refused.value, reply.error)


async def test_paths_count_as_headers(gateway: Gateway) -> None:
    for size in WITHIN:
        path = f"{MODELS}/{'a' * (size * KIB)}"
        reply = await call(gateway.address, "GET", path)
        assert (reply.status, json.loads(reply.body)) == (200, {"id": "a" * (size * KIB)})
        assert (await call(gateway.address, "GET", f"{MODELS}?a={'a' * (size * KIB)}")).status == 200
    for path in (f"{MODELS}/{'a' * 33 * KIB}", f"{MODELS}?a={'a' * 33 * KIB}", f"/v1/messages/{'a' * 300 * KIB}"):
        assert (await call(gateway.address, "GET", path)).status == 431


async def test_the_limit_is_an_option(short_directory: Path) -> None:
    router = FakeRouter()
    addresses = await router.start(f"unix:{short_directory}/router.sock")
    gateway = await start_gateway(short_directory, addresses, "--max-header-kib", "96")
    try:
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            value = "a" * (94 * KIB)
            assert await models(channel, (("x-a", value),)) == ["fake"]
            body = await http2.request(gateway.address, b"GET", MODELS.encode(), [(b"x-a", value.encode())])
            assert json.loads(body)["data"] == [{"id": "fake"}]
            assert (await call(gateway.address, "GET", MODELS, headers={"x-a": "a" * (97 * KIB)})).status == 431
    finally:
        await gateway.stop()
        await router.stop()


async def test_a_hundred_headers_are_taken(gateway: Gateway) -> None:
    # Host and accept-encoding are from the client itself.
    for count, status in ((98, 200), (150, 431), (500, 431)):
        headers = {f"x-{number}": "1" for number in range(count)}
        assert (await call(gateway.address, "GET", MODELS, headers=headers)).status == status
        fields = [(name.encode(), b"1") for name in headers]
        body = json.loads(await http2.request(gateway.address, b"GET", MODELS.encode(), fields))
        assert body.keys() == ({"object", "data"} if status == 200 else {"error"})


@pytest.mark.parametrize("value", ["!!!", "A", "AB", "AAA==", "AA==AA==", "AA,AA", "-_-_", "ÿ"])
async def test_a_binary_header_must_be_base64(gateway: Gateway, value: str) -> None:
    message = "The value of the header 'x-data-bin' must be base64, because its name ends in '-bin'."
    reply = await raw(gateway, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-data-bin: " + value.encode("latin-1"))
    assert (reply.status, reply.error["message"]) == (400, message)
    reply = await raw(gateway, b"GET /api/tags HTTP/1.1\r\nhost: localhost\r\nx-data-bin: " + value.encode("latin-1"))
    assert (reply.status, json.loads(reply.body)) == (400, {"error": message})


@pytest.mark.parametrize("value", ["", "AA", "AA==", "AAA", "AAA=", "AAAA", "/w", "AAAAAAA="])
async def test_what_is_base64_is_taken(gateway: Gateway, value: str) -> None:
    assert (await call(gateway.address, "GET", MODELS, headers={"x-data-bin": value})).status == 200


async def test_typed_calls_may_send_bytes(channel: grpc.aio.Channel) -> None:
    for data in (b"", b"\xff", b"\xff\xfe", bytes(range(256))):
        assert await models(channel, (("x-data-bin", data), ("grpc-tags-bin", data))) == ["fake"]


async def test_headers_that_only_grpc_reads_do_no_harm(gateway: Gateway, channel: grpc.aio.Channel) -> None:
    """One value that gRPC cannot read used to break the header for every later call through the same gateway."""
    reply = await call(gateway.address, "GET", MODELS, headers={"grpc-timeout": "x"})
    assert (reply.status, reply.error["message"]) == (
        400,
        "The value of the header 'grpc-timeout' is not valid in gRPC.",
    )
    assert await models(channel) == ["fake"]
    for name, value in (
        ("grpc-timeout", "20S"),
        ("grpc-encoding", "x"),
        ("grpc-previous-rpc-attempts", "x"),
        ("grpc-retry-pushback-ms", "x"),
        ("grpc-status", "x"),
        ("lb-cost-bin", "AAAA"),
    ):
        assert (await call(gateway.address, "GET", MODELS, headers={name: value})).status == 200
        assert await models(channel) == ["fake"]
    path = b"/quire.inference.v1.InferenceService/ListModels"
    no_fields = bytes(5)  # a message without any, behind gRPC's prefix
    typed = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    for field in ((b"grpc-timeout", b"x"), (b"x-data-bin", b"!!!")):
        # In headers it ends this call alone; in trailers nobody reads it.
        await http2.request(gateway.address, b"POST", path, (*typed, field), no_fields)
        await http2.request(gateway.address, b"POST", path, typed, no_fields, (field,))
        assert await models(channel, (("x-data-bin", b"\xff"),)) == ["fake"]


@pytest.mark.parametrize(
    ("metadata", "code", "details"),
    [
        ((b"grpc-timeout", b"x"), b"3", "The value of the header 'grpc-timeout' is not valid in gRPC."),
        ((b"x-data-bin", b"!!!"), b"3", "The value of the header 'x-data-bin' must be base64"),
        ((b"grpc-encoding", b"br"), b"12", "Messages must be compressed with gzip or deflate"),
    ],
)
async def test_a_typed_call_with_a_header_that_grpc_cannot_read(
    gateway: Gateway, metadata: tuple[bytes, bytes], code: bytes, details: str
) -> None:
    head = b"POST /quire.inference.v1.InferenceService/ListModels HTTP/1.1\r\nhost: localhost\r\n"
    name, value = metadata
    reply = await raw(gateway, head + b"content-type: application/grpc\r\nte: trailers\r\n" + name + b": " + value)
    assert (reply.status, reply.headers["grpc-status"]) == (200, code.decode())
    assert details in reply.headers["grpc-message"]
    assert details in json.loads(reply.headers["quire-error"])["error"]["message"]
    encoded = reply.headers["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(base64.b64decode(encoded + "=" * (-len(encoded) % 4)))
    assert (str(status.code), details in status.message) == (code.decode(), True)


@pytest.mark.parametrize("path", ["/v1/models/%ff%fe", "/tokenizer_info?model=%ff", "/v1/models/%ed%a0%80", "/%c0%80"])
async def test_a_path_must_be_utf_8(gateway: Gateway, path: str) -> None:
    reply = await call(gateway.address, "GET", path)
    assert (reply.status, reply.error["message"]) == (
        400,
        "The path is not valid UTF-8 once its %-escapes are decoded.",
    )


@pytest.mark.parametrize("path", [b"/v1/models/\xff\xfe", b"/tokenizer_info?model=\xff"])
async def test_a_path_of_plain_bytes_must_be_utf_8(gateway: Gateway, path: bytes) -> None:
    """Envoy takes such bytes over HTTP/2 only."""
    body = await http2.request(gateway.address, b"GET", path)
    message = "The path is not valid UTF-8 once its %-escapes are decoded."
    assert json.loads(body)["error"]["message"] == message


async def test_any_character_may_stand_in_a_path(gateway: Gateway) -> None:
    for escaped, name in (
        ("%C3%BC", "ü"),
        ("%e4%bd%a0", "你"),
        ("%F0%9F%91%8B", "👋"),
        ("%f4%8f%bf%bf", "\U0010ffff"),
        ("%", "%"),
    ):
        reply = await call(gateway.address, "GET", f"{MODELS}/{escaped}")
        assert (reply.status, json.loads(reply.body)) == (200, {"id": name})


@pytest.mark.parametrize("coding", ["gzip", "gzip, chunked", "identity", "chunked, chunked"])
async def test_bodies_come_whole_or_in_chunks(gateway: Gateway, coding: str) -> None:
    for path in ("/v1/chat/completions", "/api/chat"):
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: {coding}"
        reply = await raw(gateway, head.encode())
        message = "The request body needs a content-length header, or 'transfer-encoding: chunked' and no other."
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["message"] == message
