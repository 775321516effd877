"""Errors for clients: a table from each kind of error to its gRPC status and its error body.

Envoy turns the gRPC status into an HTTP status. The body has OpenAI's shape, unless an API defines its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote

import grpc

# Maximum size of an error body in trailing metadata. Leaves room for the other metadata: by default, gRPC peers refuse
# more than 8 KiB in all.
MAX_BODY_BYTES = 4096
# Limits of a status message, in characters and in bytes as sent. It is sent percent-encoded: a character outside ASCII
# takes up to twelve bytes.
_MAX_DETAILS_CHARS = 512
_MAX_DETAILS_BYTES = 1024


class ErrorKind(Enum):
    """A kind of error. Its value: the gRPC status, OpenAI's `type`, and OpenAI's `code` for errors that set no other
    code."""

    INVALID_REQUEST = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request_error", None)
    CONTEXT_LENGTH = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request_error", "context_length_exceeded")
    UNSUPPORTED = (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request_error", "unsupported_parameter")
    UNAUTHENTICATED = (grpc.StatusCode.UNAUTHENTICATED, "invalid_request_error", "invalid_api_key")
    MODEL_NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "invalid_request_error", "model_not_found")
    NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "invalid_request_error", "not_found")
    OVERLOADED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limit_error", "rate_limit_exceeded")
    UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, "server_error", "unavailable")
    TIMEOUT = (grpc.StatusCode.DEADLINE_EXCEEDED, "server_error", "timeout")
    INTERNAL = (grpc.StatusCode.INTERNAL, "server_error", "internal_error")
    # The request's bytes do not parse as the method's request message. The status is INTERNAL, as in gRPC's libraries.
    UNDECODABLE = (grpc.StatusCode.INTERNAL, "invalid_request_error", "undecodable_message")

    @property
    def is_own_fault(self) -> bool:
        """Whether the client could not have avoided the error. A server that is too busy is not at fault, and deadlines
        are the clients' own."""
        return self in (ErrorKind.UNAVAILABLE, ErrorKind.INTERNAL)

    @property
    def is_bad_request(self) -> bool:
        """Whether the request itself is wrong, so that a retry cannot help."""
        return self.status is grpc.StatusCode.INVALID_ARGUMENT

    @property
    def status(self) -> grpc.StatusCode:
        status: grpc.StatusCode = self.value[0]
        return status


@dataclass(slots=True)
class ApiError(Exception):
    """An error for the client. `param`: name of the request field at fault. `retry_after`: seconds."""

    kind: ErrorKind
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    # Whether this is the answer to a probe that asks whether the router is ready.
    is_of_probe: bool = False

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, dict[str, str | None]]:
        """Returns OpenAI's error object."""
        _, kind, code = self.kind.value
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code or code},
        }

    def details(self) -> str:
        """Returns the message for the gRPC status, cut to the limits of a status message."""
        text = self.message[:_MAX_DETAILS_CHARS]
        while len(quote(text, safe=_PRINTABLE)) > _MAX_DETAILS_BYTES:
            text = shorter(text)
        return text

    def metadata(self, body_of: ErrorBody | None = None) -> tuple[tuple[str, str], ...]:
        """Returns trailing metadata: `quire-error`, ASCII JSON of at most 4 KiB, and `retry-after` in whole seconds.
        `body_of`: makes the API's error body; default: OpenAI's."""
        error, body_of = self, body_of or ApiError.body
        text = json.dumps(body_of(error))
        while len(text) > MAX_BODY_BYTES:
            param = None if error.param is None else shorter(error.param)
            error = dataclasses.replace(error, message=shorter(error.message), param=param)
            text = json.dumps(body_of(error))
        if self.retry_after is None:
            return (("quire-error", text),)
        return (("quire-error", text), ("retry-after", str(max(1, math.ceil(self.retry_after)))))


# Maximum number of models that an error names, and maximum characters of each name.
_MAX_NAMES = 8
_MAX_NAME_CHARS = 64

# Characters that a status message contains without percent-encoding.
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
# Function that makes an API's error body, a JSON value. The body contains the error's message and param at most once
# each.
ErrorBody = Callable[[ApiError], object]


def shorter(text: str) -> str:
    """Returns the first half of `text` and an ellipsis if `text` has more than 128 characters, else `text`. Shorter
    texts need not be cut: an error body with a message and a param of 128 characters each always fits into
    MAX_BODY_BYTES, because one character takes at most twelve characters of ASCII JSON (a surrogate pair)."""
    return text[: len(text) // 2] + "…" if len(text) > 128 else text


_KIND_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT.value[0]: ErrorKind.INVALID_REQUEST,
    grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: ErrorKind.OVERLOADED,
    grpc.StatusCode.UNAVAILABLE.value[0]: ErrorKind.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED.value[0]: ErrorKind.TIMEOUT,
}


def kind_of_code(code: int) -> ErrorKind:
    """Returns the kind for a google.rpc.Code that a scheduler reports; INTERNAL for codes that a scheduler should not
    use."""
    return _KIND_BY_CODE.get(code, ErrorKind.INTERNAL)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(ErrorKind.INVALID_REQUEST, message, param, code)


def too_many(param: str, limit: int, given: int, what: str = "array") -> ApiError:
    """Returns the error for an array or object with too many entries. `what`: "array" or "object"."""
    noun = "elements" if what == "array" else "fields"
    message = f"Invalid '{param}': {what} too long. Expected at most {limit} {noun}, but got {given} instead."
    return invalid(message, param, f"{what}_above_max_length")


def model_not_found(name: str, served: Sequence[str]) -> ApiError:
    """Returns the error for a model that is not served. `served`: names of the models that are, or of the other
    versions of this one."""
    message = f"The model `{name[:256]}` does not exist.{served_models(served)}"
    return ApiError(ErrorKind.MODEL_NOT_FOUND, message, "model")


def served_models(names: Sequence[str]) -> str:
    """Returns a sentence, after a space, that names the models; empty if there are none. Long names are cut, and of
    many names only the first are given."""
    if not names:
        return ""
    shown = [f"`{name[:_MAX_NAME_CHARS]}{'…' * (len(name) > _MAX_NAME_CHARS)}`" for name in names[:_MAX_NAMES]]
    more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    *first, last = [*shown, *more]
    return f" Served here: {', '.join(first)} and {last}." if first else f" Served here: {last}."


def not_ready(message: str) -> ApiError:
    """Returns the answer to a probe that asks whether the router is ready."""
    return ApiError(ErrorKind.UNAVAILABLE, message, retry_after=1.0, is_of_probe=True)


def unavailable(message: str, retry_after: float = 1.0) -> ApiError:
    return ApiError(ErrorKind.UNAVAILABLE, message, retry_after=retry_after)


def overloaded(message: str, retry_after: float = 1.0) -> ApiError:
    return ApiError(ErrorKind.OVERLOADED, message, retry_after=retry_after)


def internal() -> ApiError:
    """Returns the error for a bug in the server. The client gets no details; the log has them."""
    return ApiError(ErrorKind.INTERNAL, "The server had an error while processing your request.")


def is_failure(fault: BaseException) -> bool:
    """Returns whether the exception says that work has failed: not that it was cancelled, or that the process ends.
    Rust code of the libraries that panics raises PanicException, which is no Exception."""
    return not isinstance(fault, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt | SystemExit)
