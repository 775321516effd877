"""Error details for gRPC clients: google.rpc.Status in the trailer `grpc-status-details-bin`."""

from __future__ import annotations

import math
import re

from services.router.errors import ApiError, shorter

try:
    from google.rpc import error_details_pb2, status_pb2
except ImportError:  # googleapis-common-protos is not installed: errors are sent without details
    status_pb2 = None

# Domain of the server in google.rpc.ErrorInfo.
DOMAIN = "quire"
# Maximum size of a serialized google.rpc.Status; in base64, it is 2 KiB. Together with `quire-error` and the message,
# the trailers then stay below 8 KiB, the amount of metadata that every gRPC peer accepts.
_MAX_BYTES = 1536


def details_metadata(error: ApiError) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the trailers that are sent in addition to `quire-error`: `grpc-status-details-bin` and, if a retry can
    help, `grpc-retry-pushback-ms`, the delay before gRPC's built-in retry."""
    metadata: list[tuple[str, str | bytes]] = []
    if status_pb2 is not None:
        metadata.append(("grpc-status-details-bin", _status(error)))
    if error.retry_after is not None:
        metadata.append(("grpc-retry-pushback-ms", str(max(1, math.ceil(error.retry_after * 1000)))))
    return tuple(metadata)


def _status(error: ApiError) -> bytes:
    """Returns a serialized google.rpc.Status of at most _MAX_BYTES. Its message and field name are shortened to fit."""
    message, field = error.details(), error.param
    while True:
        data: bytes = _status_of(error, message, field).SerializeToString()
        if len(data) <= _MAX_BYTES:
            return data
        message, field = shorter(message), None if field is None else shorter(field)


def _status_of(error: ApiError, message: str, field: str | None) -> status_pb2.Status:
    status = status_pb2.Status(code=error.kind.status.value[0], message=message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=_reason(error), domain=DOMAIN))
    if field is not None and error.kind.is_bad_request:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(math.ceil(error.retry_after * 1000))
        status.details.add().Pack(retry)
    return status


def _reason(error: ApiError) -> str:
    """Returns the error's code in the format of google.rpc.ErrorInfo's reasons: [A-Z][A-Z0-9_]+[A-Z0-9], at most 63
    characters."""
    code = error.code or error.kind.value[2] or error.kind.name
    return re.sub(r"[^A-Z0-9_]", "_", code.upper())[:63].strip("_")
