"""Errors that no router shaped, Envoy's own included, have the shape of the path's API."""

from __future__ import annotations

import json

import grpc

from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.fake_router import FakeRouter, aborting


async def test_each_api_has_its_shape(gateway: Gateway) -> None:
    wrong_method = {
        "/v1/chat/completions": {
            "error": {
                "message": "/v1/chat/completions does not take GET.", "type": "invalid_request_error", "param": None,
                "code": "method_not_supported",
            },
        },
        "/v1/messages": {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "/v1/messages does not take GET."},
        },
        "/api/chat": {"error": "/api/chat does not take GET."},
    }  # fmt: skip
    for path, body in wrong_method.items():
        reply = await call(gateway.address, "GET", path)
        assert (reply.status, reply.headers["content-type"]) == (405, "application/json")
        assert json.loads(reply.body) == body


async def test_what_ollama_has_besides_is_missing_in_its_shape(gateway: Gateway) -> None:
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete"), ("GET", "/api/blobs/sha256:0")):
        reply = await call(gateway.address, method, path)
        assert (reply.status, json.loads(reply.body)) == (404, {"error": f"There is no {method} {path} here."})


async def test_the_root_answers_who_looks_whether_somebody_is_there(gateway: Gateway) -> None:
    for method, content in (("GET", b"here"), ("HEAD", b"")):
        reply = await call(gateway.address, method, "/")
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "text/plain", content)
    reply = await call(gateway.address, "POST", "/", b"{}")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


async def test_a_body_that_is_too_large(gateway: Gateway) -> None:
    large = b" " * 17_000_000
    reply = await call(gateway.address, "POST", "/v1/messages", large)
    assert (reply.status, json.loads(reply.body)["error"]["type"]) == (413, "request_too_large")


async def test_a_router_s_status_without_a_body_is_shaped(gateway: Gateway, router: FakeRouter) -> None:
    for code, status, kind in (
        (grpc.StatusCode.INTERNAL, 500, "api_error"),
        (grpc.StatusCode.UNAVAILABLE, 503, "overloaded_error"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
    ):
        router.script = aborting(code, 'a "quoted"\nüber 100% failure')
        reply = await call(gateway.address, "POST", "/v1/messages", b"{}")
        error = {"type": kind, "message": 'a "quoted"\nüber 100% failure'}
        assert (reply.status, json.loads(reply.body)) == (status, {"type": "error", "error": error})
    # The fake router does not know how.
    reply = await call(gateway.address, "POST", "/api/chat", b"{}")
    assert (reply.status, list(json.loads(reply.body))) == (501, ["error"])


async def test_the_routers_own_body_is_left_as_it_is(gateway: Gateway, router: FakeRouter) -> None:
    body = '{"type":"error","error":{"type":"x","message":"y"}}'
    router.script = aborting(grpc.StatusCode.INVALID_ARGUMENT, "ignored", ("quire-error", body))
    reply = await call(gateway.address, "POST", "/v1/messages", b"{}")
    assert (reply.status, reply.body.decode()) == (400, body)


async def test_a_quote_in_a_message_does_not_end_it(gateway: Gateway) -> None:
    """Envoy's own answer repeats the path."""
    reply = await call(gateway.address, "PUT", '/api/chat?a="b"')
    assert json.loads(reply.body) == {"error": '/api/chat?a="b" does not take PUT.'}
