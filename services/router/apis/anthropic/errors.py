"""Errors in the format of Anthropic's API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.router.errors import ApiError, ErrorKind

_TYPES = {
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.MODEL_NOT_FOUND: "not_found_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.OVERLOADED: "rate_limit_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.TIMEOUT: "timeout_error",
    ErrorKind.INTERNAL: "api_error",
}


@dataclass(slots=True)
class ThreadUnsupportedError(ApiError):
    """The request uses `thread`, a conversation that the server stores. Quire stores no conversations. Anthropic's SDKs
    recognize this error by its details; their tool runner then continues without a thread."""

    unsupported: tuple[str, ...] = ()

    @classmethod
    def of(cls, *unsupported: str) -> ThreadUnsupportedError:
        message = (
            f"'{unsupported[0]}' is not supported: this server does not store conversations. "
            "Send the whole conversation in 'messages'."
        )
        return cls(ErrorKind.UNSUPPORTED, message, unsupported[0], unsupported=unsupported)


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Returns the error in the format of Anthropic's API. The format has no field for the parameter's name, but the
    message contains it."""
    described: dict[str, Any] = {
        "type": _TYPES.get(error.kind, "invalid_request_error"),
        "message": error.message,
    }
    if isinstance(error, ThreadUnsupportedError):
        details = {"error_code": "thread_unsupported_request", "unsupported": list(error.unsupported)}
        described["details"] = details
    return {"type": "error", "error": described}
