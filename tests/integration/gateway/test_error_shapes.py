"""Errors that no router shaped, Envoy's own included, have the shape of the path's API."""

from __future__ import annotations

import json

import grpc

from services.router.apis.anthropic.replies import AnthropicError
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.fake_router import FakeRouter, aborting

MESSAGES = "/v1/messages"


def anthropic_error(reply: Reply) -> dict[str, str]:
    """It names its request, as the header does that Anthropic's SDKs look for."""
    content = AnthropicError.model_validate_json(reply.body).model_dump(exclude_none=True)
    assert content.pop("request_id") == reply.headers["request-id"] == reply.headers["x-request-id"]
    assert content.keys() == {"type", "error"}
    return dict(content["error"])


async def test_each_api_has_its_shape(gateway: Gateway) -> None:
    wrong_method = {
        "/v1/chat/completions": {
            "error": {
                "message": "/v1/chat/completions does not take GET.", "type": "invalid_request_error", "param": None,
                "code": "method_not_supported",
            },
        },
        "/api/chat": {"error": "/api/chat does not take GET."},
    }  # fmt: skip
    for path, body in wrong_method.items():
        reply = await call(gateway.address, "GET", path)
        assert (reply.status, reply.headers["content-type"]) == (405, "application/json")
        assert json.loads(reply.body) == body
    reply = await call(gateway.address, "GET", MESSAGES)
    assert (reply.status, reply.headers["content-type"]) == (405, "application/json")
    assert anthropic_error(reply) == {"type": "invalid_request_error", "message": "/v1/messages does not take GET."}


async def test_the_root_answers_who_looks_whether_somebody_is_there(gateway: Gateway) -> None:
    for method, content in (("GET", b"here"), ("HEAD", b"")):
        reply = await call(gateway.address, method, "/")
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "text/plain", content)
    reply = await call(gateway.address, "POST", "/", b"{}")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


async def test_an_unknown_path_has_the_shape_of_those_beside_it(gateway: Gateway) -> None:
    reply = await call(gateway.address, "POST", "/api/pull", b"{}")
    assert (reply.status, json.loads(reply.body)) == (404, {"error": "There is no POST /api/pull here."})
    reply = await call(gateway.address, "POST", f"{MESSAGES}/batches", b"{}")
    error = {"type": "not_found_error", "message": "There is no POST /v1/messages/batches here."}
    assert (reply.status, anthropic_error(reply)) == (404, error)


async def test_a_body_that_is_too_large(gateway: Gateway) -> None:
    large = b" " * 17_000_000
    reply = await call(gateway.address, "POST", MESSAGES, large)
    assert (reply.status, anthropic_error(reply)["type"]) == (413, "request_too_large")


async def test_a_router_s_status_without_a_body_is_shaped(gateway: Gateway, router: FakeRouter) -> None:
    for code, status, kind in (
        (grpc.StatusCode.INTERNAL, 500, "api_error"),
        (grpc.StatusCode.UNAVAILABLE, 503, "overloaded_error"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
    ):
        router.script = aborting(code, 'a "quoted"\nüber 100% failure')
        reply = await call(gateway.address, "POST", MESSAGES, b"{}")
        error = {"type": kind, "message": 'a "quoted"\nüber 100% failure'}
        assert (reply.status, anthropic_error(reply)) == (status, error)
    # The fake router does not know how.
    reply = await call(gateway.address, "POST", "/api/chat", b"{}")
    assert (reply.status, list(json.loads(reply.body))) == (501, ["error"])


async def test_the_routers_own_body_is_left_as_it_is(gateway: Gateway, router: FakeRouter) -> None:
    """But that an error of Anthropic's names its request."""
    error = {"type": "api_error", "message": 'a } and a "}"'}
    body = json.dumps({"type": "error", "error": error})
    router.script = aborting(grpc.StatusCode.INVALID_ARGUMENT, "ignored", ("quire-error", body))
    reply = await call(gateway.address, "POST", MESSAGES, b"{}", {"x-request-id": "mine-1"})
    assert (reply.status, anthropic_error(reply), reply.headers["request-id"]) == (400, error, "mine-1")
    # An id that would have to be escaped.
    reply = await call(gateway.address, "POST", MESSAGES, b"{}", {"x-request-id": 'a"%1'})
    assert (json.loads(reply.body), reply.headers["request-id"]) == (json.loads(body), 'a"%1')
    reply = await call(gateway.address, "POST", "/v1/chat/completions", b"{}")
    assert reply.body.decode() == body
    assert "request-id" not in reply.headers


async def test_an_answer_of_anthropics_names_its_request(gateway: Gateway, router: FakeRouter) -> None:
    reply = await call(gateway.address, "POST", MESSAGES, b"{}")
    assert (reply.status, reply.headers["request-id"]) == (200, router.metadata["x-request-id"])


async def test_a_quote_in_a_message_does_not_end_it(gateway: Gateway) -> None:
    """Envoy's own answer repeats the path."""
    reply = await call(gateway.address, "PUT", '/api/chat?a="b"')
    assert json.loads(reply.body) == {"error": '/api/chat?a="b" does not take PUT.'}
