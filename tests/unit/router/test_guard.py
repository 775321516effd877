"""A servicer's methods are closed to callers without a key, unless they are declared public."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from services.router.metrics import RequestMetrics
from services.router.rpc import Calls, Guarded, public


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
