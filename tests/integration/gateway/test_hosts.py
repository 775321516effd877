"""Which hosts a request may name. A page that makes its own name mean 127.0.0.1 (DNS rebinding) reads nothing."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter

HERE = (
    *("localhost", "LOCALHOST:8000", "ui.localhost:3000", "localhost.", "host.docker.internal:8000", "mac.local"),
    *("127.0.0.1", "127.0.0.1:8000", "0.0.0.0:8000", "192.168.1.7:8000", "[::1]:8000", "[fe80::1]"),
    *(socket.gethostname(), f"{socket.gethostname()}:8000"),
)
ELSEWHERE = (
    *("rebound.example", "rebound.example:8000", "rebound", "localhost.rebound.example", "notlocalhost"),
    *("127.0.0.1.rebound.example", "[::1].rebound.example", "localhost@rebound.example", "local", "internal"),
    *(f"{socket.gethostname()}.rebound.example", "localhost:8000.rebound.example", ""),
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def serving(*options: str) -> AsyncIterator[Gateway]:
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        router = FakeRouter()
        await router.start(f"unix:{directory}/router.sock")
        gateway = await start_gateway(Path(directory), [f"unix:{directory}/router.sock"], *options)
        try:
            yield gateway
        finally:
            await gateway.stop()
            await router.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with serving() as gateway:
        yield gateway


async def models(gateway: Gateway, host: str, path: str = "/v1/models") -> Reply:
    return await call(gateway.address, "GET", path, headers={"host": host})


async def test_this_machine_may_be_named(gateway: Gateway) -> None:
    for host in HERE:
        assert (await models(gateway, host)).status == 200, host


async def test_other_hosts_are_refused(gateway: Gateway) -> None:
    for host in ELSEWHERE:
        refused = await models(gateway, host)
        assert (refused.status, refused.error["code"]) == (403, "host_not_allowed"), host
        assert "--allowed-hosts" in refused.error["message"]
        assert host in refused.error["message"]


async def test_every_path_and_method_asks(gateway: Gateway) -> None:
    host = {"host": "rebound.example", "origin": "http://rebound.example"}
    for method, path in (("GET", "/"), ("GET", "/metrics"), ("GET", "/nothing"), ("POST", "/v1/chat/completions")):
        reply = await call(gateway.address, method, path, b"{}" if method == "POST" else None, host)
        assert reply.error["code"] == "host_not_allowed"
    # The pages of this machine may ask; but a page of this machine would name this machine.
    asked = {**host, "origin": "http://localhost:3000", "access-control-request-method": "POST"}
    assert (await call(gateway.address, "OPTIONS", "/v1/chat/completions", headers=asked)).status == 403
    ollama = await models(gateway, "rebound.example", "/api/tags")
    assert (ollama.status, list(json.loads(ollama.body))) == (403, ["error"])
    # Beside paths of KServe's API.
    cohere = await models(gateway, "rebound.example", "/v2/embed")
    assert (cohere.status, cohere.error["code"]) == (403, "host_not_allowed")
    anthropic = await models(gateway, "rebound.example", "/v1/messages")
    assert json.loads(anthropic.body)["error"]["type"] == "permission_error"


async def test_typed_clients_name_a_host_too(gateway: Gateway) -> None:
    options = [("grpc.default_authority", "rebound.example")]
    async with grpc.aio.insecure_channel(gateway.address, options=options) as channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ListModels(inference_pb2.ListModelsRequest())
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert (refused.value.details() or "").startswith("Requests for the host rebound.example are not allowed: ")
    assert "host_not_allowed" in str(dict(refused.value.trailing_metadata() or ())["quire-error"])


async def test_hosts_can_be_named() -> None:
    async with serving("--allowed-hosts", "chat.example", "--allowed-hosts", "*.Apps.example") as gateway:
        for host in ("chat.example", "CHAT.example:443", "a.apps.example", "a.b.apps.example", "localhost"):
            assert (await models(gateway, host)).status == 200, host
        for host in ("b.chat.example", "chatxexample", "apps.example", "xapps.example", "rebound.example"):
            assert (await models(gateway, host)).status == 403, host


@pytest.mark.parametrize("options", [("--allowed-hosts", "*"), ("--host", "0.0.0.0")])
async def test_every_host_may_be_named(options: tuple[str, ...]) -> None:
    """Also where other machines come in, whose names for this one the gateway cannot know."""
    async with serving(*options) as gateway:
        for host in ("rebound.example", ""):
            assert (await models(gateway, host)).status == 200


async def test_named_hosts_hold_for_every_interface() -> None:
    async with serving("--host", "0.0.0.0", "--allowed-hosts", "chat.example") as gateway:
        assert (await models(gateway, "chat.example")).status == 200
        assert (await models(gateway, "rebound.example")).status == 403
