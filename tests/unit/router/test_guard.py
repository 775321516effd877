"""A servicer's methods are closed to callers without a key, unless they are declared public."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from services.router.errors import ApiError, ErrorKind
from services.router.limits import ClientStalledError
from services.router.metrics import RequestMetrics
from services.router.rpc import Calls, Guarded, caller_of, public
from shared.log import JsonFormatter


class AbortedError(Exception):
    pass


class Context:
    """A call's context, with these headers."""

    def __init__(self, **headers: str) -> None:
        self._headers = tuple(headers.items())

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._headers

    def done(self) -> bool:
        return False

    def time_remaining(self) -> float | None:
        return None

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.trailing_metadata = dict(metadata)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: object) -> None:
        raise AbortedError(code)


class Servicer:
    calls = Calls(["secret"], RequestMetrics())

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def Undeclared(self, request: Any, context: Any) -> str:  # noqa: N802
        self.ran.append("Undeclared")
        return "done"

    @public
    async def Open(self, request: Any, context: Any) -> str:  # noqa: N802
        self.ran.append("Open")
        return "done"


async def test_an_undeclared_method_runs_only_with_a_key() -> None:
    servicer = Servicer()
    guarded = Guarded(servicer)
    with pytest.raises(AbortedError, match="UNAUTHENTICATED"):
        await guarded.Undeclared(HttpBody(), Context())
    assert servicer.ran == []
    assert await guarded.Undeclared(HttpBody(), Context(authorization="Bearer secret")) == "done"


async def test_a_public_method_runs_for_everybody() -> None:
    servicer = Servicer()
    assert await Guarded(servicer).Open(HttpBody(), Context()) == "done"
    assert servicer.ran == ["Open"]


class FailingServicer:
    calls = Calls([], RequestMetrics())

    async def Fail(self, request: Any, context: Any) -> str:  # noqa: N802
        raise ApiError(ErrorKind.UNAVAILABLE, "no scheduler")

    async def Refuse(self, request: Any, context: Any) -> str:  # noqa: N802
        raise ApiError(ErrorKind.OVERLOADED, "too many")

    async def Crash(self, request: Any, context: Any) -> str:  # noqa: N802
        raise ZeroDivisionError

    async def Panic(self, request: Any, context: Any) -> str:  # noqa: N802
        raise PanicError

    async def Stop(self, request: Any, context: Any) -> str:  # noqa: N802
        raise asyncio.CancelledError

    async def Stall(self, request: Any, context: Any) -> str:  # noqa: N802
        raise ClientStalledError


class PanicError(BaseException):
    """As Rust code raises it when it panics."""


async def test_a_cancelled_call_ends_without_an_answer() -> None:
    with pytest.raises(asyncio.CancelledError):
        await Guarded(FailingServicer()).Stop(HttpBody(), Context())


async def test_a_client_that_read_nothing_finds_out_why() -> None:
    context = Context()
    await Guarded(FailingServicer()).Stall(HttpBody(), context)
    error = json.loads(context.trailing_metadata["quire-error"])["error"]
    assert (error["message"], error["code"]) == ("The client read its answer too slowly.", "timeout")
    assert context.code is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(("method", "num_lines"), [("Fail", 1), ("Refuse", 0), ("Crash", 2), ("Panic", 2)])
async def test_errors_of_the_server_are_logged_with_the_id_of_the_request(
    method: str, num_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(JsonFormatter("router"))
    context = Context(**{"x-request-id": "client-7"})
    with pytest.raises(AbortedError):
        await getattr(Guarded(FailingServicer()), method)(HttpBody(), context)
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    assert len(lines) == num_lines
    assert {line["request_id"] for line in lines} <= {"client-7"}


async def test_a_request_without_an_id_gets_one() -> None:
    ids = []

    class Asking:
        calls = Calls([], RequestMetrics())

        async def Ask(self, request: Any, context: Any) -> str:  # noqa: N802
            ids.append(caller_of(context).request_id)
            ids.append(caller_of(context).request_id)
            return "done"

    await Guarded(Asking()).Ask(HttpBody(), Context())
    assert len(ids[0]) == 32
    assert ids[0] == ids[1]
