"""A plain HTTP client for tests: what comes back, exactly as it came."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes.waiting import HANG_S


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object; fails where the body is anything else."""
        assert self.headers["content-type"] == "application/json", self.headers
        content = json.loads(self.body)
        assert set(content) == {"error"}, content
        assert set(content["error"]) == {"message", "type", "param", "code"}, content
        return dict(content["error"])


async def call(
    address: str, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """Header names in lower case."""
    return await asyncio.to_thread(_call, address, method, path, body, dict(headers or {}))


def _call(address: str, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
    connection = http.client.HTTPConnection(address, timeout=HANG_S)
    try:
        if body is not None:
            headers = {"content-type": "application/json", **headers}
        # The server may answer and close before it has read all of the body.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()
