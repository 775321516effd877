"""In which form a body may come: as JSON, by whatever name curl gives it, and as it is."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.fake_router import FakeRouter

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/messages"])
async def test_json_is_taken_and_other_types_are_415(gateway: Gateway, router: FakeRouter, path: str) -> None:
    for taken in (
        *("application/json", "application/json; charset=utf-8", "Application/JSON ;charset=utf-8", ""),
        *("application/problem+json", "application/x-www-form-urlencoded"),
    ):
        reply = await call(gateway.address, "POST", path, b"{}", {"content-type": taken})
        assert (reply.status, reply.body) == (200, b"{}"), taken
    router.reset()
    for refused in (
        "text/plain;charset=UTF-8",
        "multipart/form-data; boundary=x",
        "application/octet-stream",
        "text/json",
    ):
        reply = await call(gateway.address, "POST", path, b"{}", {"content-type": refused})
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["type"]) == (415, "invalid_request_error")
        assert error["message"] == "The request body must be JSON, with the header 'content-type: application/json'."
        assert reply.headers["content-type"] == "application/json"
    assert router.calls == 0


async def test_a_compressed_body_is_415(gateway: Gateway, router: FakeRouter) -> None:
    """Whatever it would have become."""
    for encoding in ("gzip", "br", "zstd", "gzip, identity"):
        reply = await call(
            gateway.address, "POST", CHAT, gzip.compress(b" " * 10_000_000), {"content-encoding": encoding}
        )
        assert (reply.status, reply.error["code"]) == (415, "unsupported_content_encoding")
        assert f"'content-encoding: {encoding}'" in reply.error["message"]
    assert router.calls == 0
    assert (await call(gateway.address, "POST", CHAT, b"{}", {"content-encoding": "identity"})).status == 200


async def test_what_is_wrong_with_the_path_comes_first(gateway: Gateway) -> None:
    for path, status in (("/v1/nothing", 404), ("/health", 405)):
        assert (await call(gateway.address, "POST", path, b"{}", {"content-type": "text/plain"})).status == status
