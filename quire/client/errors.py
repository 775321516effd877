"""What a client raises."""

from __future__ import annotations

import json
from collections.abc import Iterable

import grpc


class QuireError(Exception):
    """The server's error. `type`, `param` and `code` as in OpenAI's error object; `retry_after` in seconds. `is_final`:
    the server says that another try of the same call cannot succeed."""

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
    """The stream ended without its final message: what came is not the whole answer."""

    def __init__(self) -> None:
        super().__init__(
            grpc.StatusCode.UNAVAILABLE, "The stream ended without its final message; the answer is cut off."
        )


def error_from_status(
    status: grpc.StatusCode, details: str | None, trailers: Iterable[tuple[str, str | bytes]] | None
) -> QuireError:
    """The error that a call's status and trailing metadata describe."""
    metadata = dict(trailers or ())
    retry_after = _seconds(metadata.get("retry-after"))
    pushback = _seconds(metadata.get("grpc-retry-pushback-ms"))
    is_final = pushback is not None and pushback < 0
    try:
        error = json.loads(metadata["quire-error"])["error"]
        message = str(error["message"])
        fields = {name: error.get(name) for name in ("type", "param", "code")}
    except (KeyError, TypeError, ValueError):
        # A proxy's or the transport's own error has no such body. Envoy can only reset a stream whose router is gone.
        if status is grpc.StatusCode.INTERNAL and "RST_STREAM" in (details or ""):
            return QuireError(grpc.StatusCode.UNAVAILABLE, "The stream broke: the router that served it is gone.")
        return QuireError(status, details or status.name, retry_after=retry_after, is_final=is_final)
    return QuireError(status, message, **fields, retry_after=retry_after, is_final=is_final)


def _seconds(value: str | bytes | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
