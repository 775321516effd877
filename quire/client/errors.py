"""The exceptions that the clients raise."""

from __future__ import annotations

import json
from collections.abc import Iterable

import grpc


class QuireError(Exception):
    """An error of the server. `type`, `param` and `code` are the fields of OpenAI's error object. `retry_after`:
    seconds to wait before a retry. `is_final`: the server reports that a retry of the same call cannot succeed."""

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - OpenAI's word for it
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.is_final = is_final


class StreamCutError(QuireError):
    """A stream ended without its final message, so the answer is incomplete."""

    def __init__(self) -> None:
        super().__init__(
            grpc.StatusCode.UNAVAILABLE, "The stream ended without its final message; the answer is incomplete."
        )


def error_from_status(
    status: grpc.StatusCode, details: str | None, trailers: Iterable[tuple[str, str | bytes]] | None
) -> QuireError:
    """Builds the error that a call's status and trailing metadata describe."""
    metadata = dict(trailers or ())
    retry_after = _seconds(metadata.get("retry-after"))
    pushback = _seconds(metadata.get("grpc-retry-pushback-ms"))
    is_final = pushback is not None and pushback < 0
    try:
        error = json.loads(metadata["quire-error"])["error"]
        message = str(error["message"])
        fields = {name: error.get(name) for name in ("type", "param", "code")}
    except (KeyError, TypeError, ValueError):
        # Only a router sends quire-error: the errors of a proxy or of the transport come without it. If a router
        # vanishes, Envoy just resets the streams that the router served.
        if status is grpc.StatusCode.INTERNAL and "RST_STREAM" in (details or ""):
            return QuireError(grpc.StatusCode.UNAVAILABLE, "The stream was reset: the router that served it is gone.")
        return QuireError(status, details or status.name, retry_after=retry_after, is_final=is_final)
    return QuireError(status, message, **fields, retry_after=retry_after, is_final=is_final)


def _seconds(value: str | bytes | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
