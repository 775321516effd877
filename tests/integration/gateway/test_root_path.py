"""Behind a proxy that passes its prefix on, every path is served with the prefix and without it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.envoy.config import GatewayConfig
from services.router.openapi.document import document
from services.router.openapi.paths import OPERATIONS
from shared.config import ConfigError
from shared.root_path import check_root_path
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter
from tests.integration.gateway.test_paths import PATHS

CHAT = "/v1/chat/completions"
HERE, ELSEWHERE = "http://localhost:3000", "https://chat.example"


@pytest.fixture
async def prefixed(short_directory: Path, router: FakeRouter) -> AsyncIterator[Gateway]:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--root-path", "/llm/a.b")
    yield gateway
    await gateway.stop()


async def test_paths_have_the_prefix_or_not(prefixed: Gateway, router: FakeRouter) -> None:
    for path in (CHAT, f"/llm/a.b{CHAT}", f"/llm/a.b{CHAT}/?x=1"):
        reply = await call(prefixed.address, "POST", path, b'{"a": 1}')
        assert (reply.status, reply.body) == (200, b'{"a": 1}'), path
    for path in ("/v1/models/org/m", "/llm/a.b/v1/models/org/m", "/llm/a.b/v1/models/org%2Fm"):
        reply = await call(prefixed.address, "GET", path)
        assert (reply.status, json.loads(reply.body)) == (200, {"id": "org/m"}), path
    for path in ("/", "/llm/a.b", "/llm/a.b/", "/llm/a.b?x=1"):
        reply = await call(prefixed.address, "GET", path)
        assert (reply.status, reply.body) == (200, b"here"), path


async def test_other_prefixes_are_no_paths(prefixed: Gateway, router: FakeRouter) -> None:
    for path in (f"/llm/axb{CHAT}", f"/llm/a.bc{CHAT}", f"/llm{CHAT}", f"/llm/a.b/llm/a.b{CHAT}"):
        reply = await call(prefixed.address, "POST", path, b"{}")
        assert reply.status == 404, path
        assert json.loads(reply.body)["error"]["code"] == "unknown_url"
    reply = await call(prefixed.address, "GET", f"/llm/a.b{CHAT}")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


async def test_errors_below_the_prefix_have_each_api_s_shape(prefixed: Gateway, router: FakeRouter) -> None:
    reply = await call(prefixed.address, "POST", "/llm/a.b/v1/messages/nothing", b"{}")
    assert (reply.status, json.loads(reply.body)["type"]) == (404, "error")


async def test_pages_are_told_below_the_prefix_what_they_may_do(prefixed: Gateway, router: FakeRouter) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for path in (CHAT, f"/llm/a.b{CHAT}"):
        preflight = await call(prefixed.address, "OPTIONS", path, headers={"origin": HERE, **asked})
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, HERE), path
        reply = await call(prefixed.address, "POST", path, b"{}", {"origin": HERE})
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, HERE), path
    router.reset()
    for path in (CHAT, f"/llm/a.b{CHAT}"):
        preflight = await call(prefixed.address, "OPTIONS", path, headers={"origin": ELSEWHERE, **asked})
        assert (preflight.status, "access-control-allow-origin" in preflight.headers) == (403, False), path
        reply = await call(prefixed.address, "POST", path, b"{}", {"origin": ELSEWHERE})
        assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed"), path
    reply = await call(prefixed.address, "POST", "/llm/a.b/v1/messages", b"{}", {"origin": ELSEWHERE})
    assert (reply.status, json.loads(reply.body)["type"]) == (403, "error")
    assert router.calls == 0


async def test_a_key_reaches_the_router_below_the_prefix(prefixed: Gateway, router: FakeRouter) -> None:
    reply = await call(prefixed.address, "POST", f"/llm/a.b{CHAT}", b"{}", {"authorization": "Bearer k1"})
    assert (reply.status, router.metadata["authorization"]) == (200, "Bearer k1")


def test_the_document_names_the_prefix() -> None:
    assert document(OPERATIONS, "1", "/llm")["servers"] == [{"url": "/llm"}]
    assert "servers" not in document(OPERATIONS, "1")


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "/a b", "/a?b", "/../a", "/a//b", "/%61"])
def test_what_is_no_prefix_stops_the_start(path: str) -> None:
    with pytest.raises(ConfigError, match="--root-path"):
        check_root_path(path)


def test_prefixes_may_be_deep_or_missing() -> None:
    for path in ("", "/a", "/a/b-c/d_e.f~"):
        check_root_path(path)
        GatewayConfig(root_path=path)
    for path in ("/v1x", "/api/llm", "/v1/llm"):
        GatewayConfig(root_path=path)


@pytest.mark.parametrize("path", PATHS)
def test_a_prefix_that_would_hide_a_served_path_stops_the_start(path: str) -> None:
    """Every beginning of every served path."""
    segments = path.split("/")[1:]
    for end in range(1, len(segments) + 1):
        prefix = "/" + "/".join(segments[:end])
        if prefix != "/":
            complaint = rf"^--root-path {prefix}: the prefix would hide the server's own path /"
            with pytest.raises(ConfigError, match=complaint):
                GatewayConfig(root_path=prefix)


@pytest.mark.parametrize("service", ["quire.inference.v1.InferenceService", "grpc.reflection.v1.ServerReflection"])
def test_a_prefix_that_would_hide_a_grpc_service_stops_the_start(service: str) -> None:
    with pytest.raises(ConfigError, match="the prefix would hide the server's own path"):
        GatewayConfig(root_path=f"/{service}")
