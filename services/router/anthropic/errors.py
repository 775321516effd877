"""Errors in Anthropic's shape."""

from __future__ import annotations

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


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Its message names the field; the shape has no place of its own for it."""
    return {
        "type": "error",
        "error": {"type": _TYPES.get(error.kind, "invalid_request_error"), "message": error.message},
    }
