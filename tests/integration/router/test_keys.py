"""Every HTTP path asks for a key, unless the document says that it needs none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.envoy.routes import http_annotations
from services.router.openapi.paths import OPERATIONS
from tests.integration.gateway import http2
from tests.integration.router.conftest import Api, StartRouter, fake_scheduler

ROOT = Path(__file__).parents[3]
NEEDS_KEY = {(operation.verb, operation.path): operation.needs_key for operation in OPERATIONS}
METHODS = {
    name: {NEEDS_KEY[verb, path.replace("=**}", "}")] for verb, path in paths}
    for name, paths in http_annotations().items()
}


@pytest.fixture
async def api(start_router: StartRouter) -> Api:
    running: Api = await start_router(fake_scheduler(), api_key=("secret",))
    return running


async def status_of(api: Api, name: str) -> grpc.StatusCode:
    """Of a call without a key. `name`: of a gRPC method, whose request may be empty."""
    service, _, method = name.rpartition(".")
    ask: Any = api.channel.unary_stream(f"/{service}/{method}")
    call = ask(b"")
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_path_that_needs_a_key_refuses_without_one(api: Api) -> None:
    asked = {name for name, needs in METHODS.items() if await status_of(api, name) is grpc.StatusCode.UNAUTHENTICATED}
    assert asked == {name for name, needs in METHODS.items() if needs == {True}}


def test_the_readme_lists_the_paths_without_a_key() -> None:
    free = {path for (_, path), needs in NEEDS_KEY.items() if not needs}
    text = (ROOT / "README.md").read_text()
    _, _, after = text.partition("asks them for a key, except on ")
    listed, _, _ = after.partition(". No hop")
    missing = {path for path in free if f"`{path}`" not in listed and not path.startswith("/v2")}
    assert missing == set()


async def test_a_key_that_is_not_utf_8_is_refused_without_a_traceback(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """grpc reads it as Latin-1, which is lawful in HTTP."""
    headers = ((b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"authorization", b"Bearer \xff"))
    body = await http2.request(api.address, b"POST", b"/quire.openai.v1.OpenAIService/ListModels", headers, bytes(5))
    assert body == b""
    assert api.router.metrics.errors["unauthenticated"] == 1
    assert [record.getMessage() for record in caplog.records if record.exc_info or record.levelname == "ERROR"] == []
