"""Which paths there are, with and without a slash at their end, and that none tells what is behind it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from deploy.envoy.routes import http_annotations
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.fake_router import Context, FakeRouter, aborting

CHAT = "/v1/chat/completions"
# Of the typed API, whose paths are names of gRPC calls.
TYPED = "/quire."
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
PATHS = sorted(
    {
        template.replace("=**}", "}").replace("{model}", "org/m").replace("{response_id}", "resp_1")
        for annotations in http_annotations().values()
        for _, template in annotations
        if not template.startswith(TYPED)
    }
)


async def test_a_slash_at_the_end_changes_nothing(gateway: Gateway, router: FakeRouter) -> None:
    for path in (CHAT, "/tokenize", "/v1/responses", "/v1/messages"):
        reply = await call(gateway.address, "POST", f"{path}/", b'{"a": 1}')
        assert (reply.status, reply.body) == (200, b'{"a": 1}'), path
    for path, content in (
        ("/health/", {"router": "fake"}),
        ("/v1/models/", {"object": "list", "data": [{"id": "fake"}]}),
        ("/v1/models/org/m/", {"id": "org/m"}),
        ("/v1/responses/resp_1/?x=1", {"id": "resp_1"}),
        ("/v1/responses/a%2Fb", {"id": "a/b"}),
    ):
        reply = await call(gateway.address, "GET", path)
        assert (reply.status, json.loads(reply.body)) == (200, content), path


@pytest.mark.parametrize("path", PATHS)
async def test_no_answer_names_what_is_inside(gateway: Gateway, router: FakeRouter, path: str) -> None:
    """Whatever is asked, and however a router fails, nobody hears of the gRPC calls behind the paths."""
    for script in (None, aborting(grpc.StatusCode.INTERNAL, "it broke")):
        router.reset()
        router.script = script or router.script
        for method in METHODS:
            for asked in (path, f"{path}/", f"{path}//", f"{path}/more"):
                reply = await call(gateway.address, method, asked, b"{}" if method == "POST" else None)
                told = " ".join([*reply.headers.values(), reply.body.decode()])
                assert "quire." not in told, (method, asked)
                assert "Service" not in told, (method, asked)
                if reply.status in (404, 405) and method != "HEAD":
                    assert method in told
                    assert asked in told


async def test_sagemaker_may_ping_by_get_or_post(gateway: Gateway, router: FakeRouter) -> None:
    for method, body in (("GET", None), ("POST", None), ("POST", b""), ("POST", b"{}"), ("POST", b"anything")):
        assert (await call(gateway.address, method, "/ping", body)).status == 200, (method, body)


async def test_probes_may_leave_out_the_body(gateway: Gateway, router: FakeRouter) -> None:
    reply = await call(gateway.address, "HEAD", "/health")
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/json", b"")
    for path in (CHAT, "/v1/models"):
        reply = await call(gateway.address, "HEAD", path)
        assert (reply.status, reply.body) == (405, b"")
    await router.stop()
    assert (await call(gateway.address, "HEAD", "/health")).status == 503


async def test_the_next_answer_on_a_connection_begins_right_after_the_headers_of_one_to_head(
    gateway: Gateway, router: FakeRouter
) -> None:
    """A body would be taken for the next answer, by a proxy for that of another client."""
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for path, status in (("/health", b"200"), ("/v1/models", b"405"), ("/nowhere", b"404")):
        for method, expected in (("HEAD", status), ("GET", b"200")):
            asked = path if method == "HEAD" else "/health"
            writer.write(f"{method} {asked} HTTP/1.1\r\nhost: {gateway.address}\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_S)
            assert head.split(b" ")[:2] == [b"HTTP/1.1", expected], (method, path, head)
            (length,) = re.findall(rb"content-length: (\d+)", head)
            assert int(length) > 0, path
            if method == "GET":
                assert json.loads(await reader.readexactly(int(length))) == {"router": "fake"}
    writer.close()


async def test_an_action_that_there_is_not_is_404(gateway: Gateway, router: FakeRouter) -> None:
    for method, path in (
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/models/m"),
    ):
        reply = await call(gateway.address, method, path, b"{}" if method == "POST" else None)
        assert (reply.status, reply.error["code"]) == (404, "unknown_url")
        assert f"{method} {path} here" in reply.error["message"]
    reply = await call(gateway.address, "POST", "/v2/models/m/load", b"{}")
    assert (reply.status, json.loads(reply.body)) == (404, {"error": "There is no POST /v2/models/m/load here."})
    for path in ("/v1/responses/resp_1", "/v1/models/org/m"):
        reply = await call(gateway.address, "DELETE", path)
        assert (reply.status, reply.headers["allow"]) == (405, "GET")


async def test_whether_a_path_streams_is_told_to_proxies(gateway: Gateway, router: FakeRouter) -> None:
    """Without these headers nginx and others gather events before they pass them on."""

    def answering(content_type: str) -> None:
        async def script(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
            yield HttpBody(content_type=content_type, data=b"{}\n")

        router.script = script

    for content_type in ("text/event-stream", "text/event-stream; charset=utf-8", "application/x-ndjson"):
        answering(content_type)
        reply = await call(gateway.address, "POST", CHAT, b"{}")
        assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-cache", "no")
    answering("application/json")
    assert (
        not {"cache-control", "x-accel-buffering"} & (await call(gateway.address, "POST", CHAT, b"{}")).headers.keys()
    )
