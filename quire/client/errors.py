"""What a client raises."""

from __future__ import annotations

import json
from collections.abc import Iterable

import grpc


class QuireError(Exception):
    """The server's error. `type`, `param` and `code` as in OpenAI's error object; `retry_after` in seconds."""

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - OpenAI's word for it
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after


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
    try:
        error = json.loads(metadata["quire-error"])["error"]
        message = str(error["message"])
        fields = {name: error.get(name) for name in ("type", "param", "code")}
    except (KeyError, TypeError, ValueError):
        # A proxy's or the transport's own error has no such body.
        return QuireError(status, details or status.name, retry_after=retry_after)
    return QuireError(status, message, **fields, retry_after=retry_after)


def _seconds(value: str | bytes | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
