"""What pages in a browser may do, by the origin that the browser tells of them: CORS, and what is refused beyond it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from services.router.apis.anthropic.replies import AnthropicError
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter

CHAT = "/v1/chat/completions"
SITE = "https://chat.example"
HERE = (
    *("http://localhost:3000", "http://localhost", "https://localhost:8443", "http://127.0.0.1:5173"),
    *("http://[::1]:8080", "http://0.0.0.0:8000", "http://ui.localhost:3000"),
    *("app://notes", "tauri://localhost", "file://", "vscode-webview://1a2b"),
)
ELSEWHERE = (
    *(SITE, "http://localhost.chat.example", "http://notlocalhost", "https://127.0.0.1.chat.example"),
    *("http://192.168.1.7:3000", "chrome-extension://abc", "null", "http://localhost:3000.chat.example"),
)
# What Stainless's JavaScript SDKs send beside what every client does.
ASKED_HEADERS = "authorization,content-type,x-stainless-os"
EXPOSED_HEADERS = (
    "x-request-id, request-id, retry-after, "
    "grpc-status, grpc-message, grpc-status-details-bin, grpc-retry-pushback-ms, quire-error"
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def serving(*options: str) -> AsyncIterator[tuple[Gateway, FakeRouter]]:
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        router = FakeRouter()
        await router.start(f"unix:{directory}/router.sock")
        gateway = await start_gateway(Path(directory), [f"unix:{directory}/router.sock"], *options)
        try:
            yield gateway, router
        finally:
            await gateway.stop()
            await router.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[tuple[Gateway, FakeRouter]]:
    async with serving() as stack:
        yield stack


async def preflight(gateway: Gateway, origin: str, method: str = "POST") -> Reply:
    """What a browser asks before it sends anything that no form could send."""
    asked = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": ASKED_HEADERS,
    }
    return await call(gateway.address, "OPTIONS", CHAT, headers=asked)


async def post(gateway: Gateway, headers: Mapping[str, str]) -> Reply:
    return await call(gateway.address, "POST", CHAT, b"{}", headers)


def permissions(reply: Reply) -> dict[str, str]:
    start = "access-control-"
    return {name.removeprefix(start): value for name, value in reply.headers.items() if name.startswith(start)}


async def test_pages_of_this_machine_may_do_everything(stack: tuple[Gateway, FakeRouter]) -> None:
    gateway, _ = stack
    for origin in HERE:
        asked = await preflight(gateway, origin)
        assert (asked.status, permissions(asked)) == (
            200,
            {
                "allow-origin": origin,
                "allow-methods": "GET, HEAD, POST",
                "allow-headers": ASKED_HEADERS,
                "expose-headers": EXPOSED_HEADERS,
                "max-age": "600",
            },
        )
        answered = await post(gateway, {"origin": origin})
        assert (answered.status, answered.headers["access-control-allow-origin"]) == (200, origin)
        assert answered.headers["vary"] == "origin"


async def test_errors_may_be_read_too(stack: tuple[Gateway, FakeRouter]) -> None:
    gateway, _ = stack
    for path, status in (("/v1/nothing", 404), ("/health", 405)):
        reply = await call(gateway.address, "POST", path, b"{}", {"origin": HERE[0]})
        assert (reply.status, permissions(reply)["allow-origin"]) == (status, HERE[0])


async def test_pages_of_others_may_do_nothing_that_has_an_effect(stack: tuple[Gateway, FakeRouter]) -> None:
    """Not even what needs no leave of the server's: a form's POST, whose answer the page could not read."""
    gateway, router = stack
    router.reset()
    for origin in ELSEWHERE:
        asked = await preflight(gateway, origin)
        assert (asked.status, permissions(asked)) == (403, {})
        for form in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            refused = await post(gateway, {"origin": origin, "content-type": form, "sec-fetch-site": "cross-site"})
            assert (refused.status, refused.error["code"]) == (403, "origin_not_allowed")
            assert origin in refused.error["message"]
        reset = await call(gateway.address, "POST", "/reset_prefix_cache", b"", {"origin": origin})
        assert reset.status == 403
    assert router.calls == 0


async def test_the_refusal_has_the_shape_of_the_paths_api(stack: tuple[Gateway, FakeRouter]) -> None:
    refusals = {
        path: await call(stack[0].address, "POST", path, b"{}", {"origin": SITE})
        for path in ("/api/chat", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses")
    }
    assert {reply.status for reply in refusals.values()} == {403}
    assert SITE in json.loads(refusals["/api/chat"].body)["error"]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        content = AnthropicError.model_validate_json(refusals[path].body)
        assert content.error.type == "permission_error"
        assert content.request_id == refusals[path].headers["request-id"]
    assert refusals["/v1/responses"].error["code"] == "origin_not_allowed"


async def test_who_is_no_page_is_not_asked(stack: tuple[Gateway, FakeRouter]) -> None:
    """No origin, or the browser's word that page and server have the same one: a proxy serves both."""
    gateway, _ = stack
    assert (await post(gateway, {})).status == 200
    assert (await post(gateway, {"origin": SITE, "sec-fetch-site": "same-origin"})).status == 200
    assert (await post(gateway, {"origin": SITE, "sec-fetch-site": "same-site"})).status == 403


async def test_a_page_under_a_name_of_its_own_for_this_machine_is_a_stranger() -> None:
    """DNS rebinding: to the browser, page and server have one origin."""
    async with serving() as (gateway, _):
        port = gateway.address.rpartition(":")[2]
        host = f"rebound.example:{port}"
        assert (await post(gateway, {"host": host, "origin": f"http://{host}"})).status == 403


async def test_origins_can_be_named() -> None:
    async with serving("--allowed-origins", f'["{SITE}", "null"]') as (gateway, _):
        for origin in (SITE, "null"):
            assert (await post(gateway, {"origin": origin})).headers["access-control-allow-origin"] == origin
        assert (await post(gateway, {"origin": HERE[0]})).status == 403


async def test_a_star_lets_every_page_in() -> None:
    async with serving("--allowed-origins", "*") as (gateway, _):
        for origin in (*HERE, *ELSEWHERE):
            assert permissions(await preflight(gateway, origin))["allow-origin"] == origin
            assert permissions(await post(gateway, {"origin": origin}))["allow-origin"] == origin


async def test_pages_can_be_kept_out_altogether() -> None:
    async with serving("--allowed-origins", "") as (gateway, _):
        assert (await post(gateway, {"origin": HERE[0]})).status == 403
        assert (await post(gateway, {})).status == 200


async def test_methods_headers_and_cookies_can_be_decided() -> None:
    options = ("--allowed-methods", "GET", "--allowed-headers", "authorization", "--allow-credentials")
    async with serving(*options) as (gateway, _):
        asked = permissions(await preflight(gateway, HERE[0]))
        always = "content-type, x-grpc-web, x-user-agent, grpc-timeout"
        assert (asked["allow-methods"], asked["allow-headers"]) == ("GET", f"{always}, authorization")
        assert asked["allow-credentials"] == "true"
        assert (await call(gateway.address, "GET", "/health", headers={"origin": HERE[0]})).status == 200
        refused = await post(gateway, {"origin": HERE[0]})
        assert (refused.status, refused.error["code"]) == (403, "origin_not_allowed")
        assert (await post(gateway, {})).status == 200
