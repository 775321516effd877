"""Every HTTP path asks for a key, unless the document says that it needs none, and every typed method but a few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.envoy.routes import http_annotations
from quire.inference.v1 import inference_pb2
from quire.kserve.v1 import open_inference_pb2
from services.router.limits.large_bodies import LARGE_BODY_BYTES
from services.router.openapi.paths import OPERATIONS
from tests.integration.gateway import http2
from tests.integration.router.conftest import Api, StartRouter, fake_scheduler

ROOT = Path(__file__).parents[3]
NEEDS_KEY = {(operation.verb, operation.path): operation.needs_key for operation in OPERATIONS}
METHODS = {
    name: {NEEDS_KEY[verb, path.replace("=**}", "}")] for verb, path in paths}
    for name, paths in http_annotations().items()
}
# Those of gRPC clients, by their full names.
TYPED = [
    method.full_name
    for file in (inference_pb2.DESCRIPTOR, open_inference_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
]
# Of Chat; others have other fields of that number, or none.
UNKNOWN_ENUM = inference_pb2.ChatRequest(tool_choice=inference_pb2.ToolChoice(mode=77)).SerializeToString()  # type: ignore[arg-type]


@pytest.fixture
async def api(start_router: StartRouter) -> Api:
    running: Api = await start_router(fake_scheduler(), api_key=("secret",))
    return running


async def status_of(api: Api, name: str, request: bytes = b"", key: str | None = None) -> grpc.StatusCode:
    """Of a call. `name`: of a gRPC method."""
    service, _, method = name.rpartition(".")
    ask: Any = api.channel.unary_stream(f"/{service}/{method}")
    call = ask(request, metadata=() if key is None else (("authorization", f"Bearer {key}"),))
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_path_that_needs_a_key_refuses_without_one(api: Api) -> None:
    asked = {name for name, needs in METHODS.items() if await status_of(api, name) is grpc.StatusCode.UNAUTHENTICATED}
    assert asked == {name for name, needs in METHODS.items() if needs == {True}}


@pytest.mark.parametrize("request_bytes", [b"", b"\x0a\x01a", UNKNOWN_ENUM])
async def test_typed_methods_ask_strangers_for_a_key_first(api: Api, request_bytes: bytes) -> None:
    refused = {name for name in TYPED if await status_of(api, name, request_bytes) is grpc.StatusCode.UNAUTHENTICATED}
    assert {name.rpartition(".")[2] for name in set(TYPED) - refused} == {"ServerLive", "ServerReady", "ServerMetadata"}


@pytest.mark.parametrize("tag", [b"\xa2\x06", b"\xa3\x06"])
async def test_large_requests_of_strangers_are_not_read(api: Api, tag: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are messages or not; they take no place among the large ones, not even with methods for everyone."""
    entered = []
    large_bodies = api.router.threads.large_bodies
    enter = large_bodies.enter

    async def counted(num_bytes: int) -> None:
        entered.append(num_bytes)
        await enter(num_bytes)

    monkeypatch.setattr(large_bodies, "enter", counted)
    request = tag + varint(2 * LARGE_BODY_BYTES) + bytes(2 * LARGE_BODY_BYTES)
    for name in TYPED:
        assert await status_of(api, name, request) is grpc.StatusCode.UNAUTHENTICATED
        assert await status_of(api, name, request, "wrong") is grpc.StatusCode.UNAUTHENTICATED
    assert entered == []
    status = await status_of(api, "inference.GRPCInferenceService.ServerLive", request, "secret")
    assert status is (grpc.StatusCode.OK if tag == b"\xa2\x06" else grpc.StatusCode.INTERNAL)
    assert entered == [len(request)]
    assert large_bodies.num_bytes == 0


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128, value >> 7 & 127 | 128, value >> 14])


def test_the_page_on_operations_lists_the_paths_without_a_key() -> None:
    free = {path for (_, path), needs in NEEDS_KEY.items() if not needs}
    text = (ROOT / "docs" / "operations.md").read_text()
    _, _, after = text.partition("Every path needs the key except ")
    listed, _, _ = after.partition(". Every key")
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
