"""Behind a proxy that passes its prefix on, every path is served with the prefix and without it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.router.openapi.document import document
from services.router.openapi.paths import OPERATIONS
from shared.config import ConfigError
from shared.root_path import check_root_path
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter

CHAT = "/v1/chat/completions"


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
