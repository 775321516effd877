"""Reads and writes OpenAI's batch format: one request per input line, one answer per output line."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from quire.batch.lines import MAX_LINE_BYTES

_URL = re.compile("/[!-~]*")
_METHOD = "POST"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request line of the input. `body`: JSON."""

    custom_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's HTTP response. `body` can be any bytes. The body of an error is normally OpenAI's error object."""

    status: int
    request_id: str
    body: bytes


class RequestError(Exception):
    """A request line that gets no answer from the server. `code` identifies the reason; the message describes it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class OutputLine:
    """An encoded line of the output. `data` ends with a newline."""

    data: bytes
    succeeded: bool


def custom_id_of(line: bytes | None) -> str | None:
    """Returns the custom id of a line of the input or the output, even if the line is invalid otherwise; None if the
    line has no custom id."""
    try:
        value = _object(line).get("custom_id")
    except RequestError:
        return None
    return value if isinstance(value, str) else None


def parse_request(line: bytes | None) -> BatchRequest:
    """Parses a line of the input. `line` is None for a line that was too long to keep. Raises RequestError."""
    fields = _object(line)
    custom_id, method, url, body = (fields.get(name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str):
        raise _invalid("'custom_id' is missing or not a string")
    if method != _METHOD:
        raise _invalid(f"'method' is {_short(method)}: use \"POST\"")
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise _invalid(f"'url' is {_short(url)}: use a path such as /v1/chat/completions")
    if not isinstance(body, dict):
        raise _invalid("'body' is missing or not an object")
    if body.get("stream"):
        raise RequestError("stream_not_supported", "'body.stream' is set: batch answers cannot be streamed")
    return BatchRequest(custom_id, url, json.dumps(body).encode())


def answer_line(custom_id: str, answer: Answer) -> OutputLine:
    body: Any = answer.body.decode(errors="replace")
    # A body that is not JSON becomes a string.
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(body)
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": body}
    return OutputLine(_dump(custom_id, response, None), 200 <= answer.status < 300)


def error_line(custom_id: str | None, error: RequestError) -> OutputLine:
    return OutputLine(_dump(custom_id, None, {"code": error.code, "message": str(error)}), False)


def read_output_line(data: bytes) -> tuple[str | None, bool]:
    """Parses a line of the output. Returns its custom id and whether the request succeeded. Raises ValueError."""
    try:
        fields = _object(data)
        response = fields["response"]
        succeeded = response is not None and 200 <= response["status_code"] < 300
        custom_id = fields["custom_id"]
    except (RequestError, LookupError, TypeError):
        raise ValueError("it has a line that run-batch did not write") from None
    return custom_id if isinstance(custom_id, str) else None, succeeded


def _object(line: bytes | None) -> dict[str, Any]:
    """Parses a line as a JSON object. Raises RequestError."""
    if line is None:
        raise RequestError("line_too_long", f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        fields = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise RequestError("invalid_json", "the line is not UTF-8") from None
    except ValueError as error:
        raise RequestError("invalid_json", f"the line is not JSON: {error}") from None
    except RecursionError:
        raise RequestError("invalid_json", "the line's JSON is nested too deeply") from None
    if not isinstance(fields, dict):
        raise RequestError("invalid_json", "the line is not a JSON object")
    return fields


def _invalid(message: str) -> RequestError:
    return RequestError("invalid_line", message)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:100] + "…"


def _dump(custom_id: str | None, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    fields = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    try:
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # A lone surrogate cannot be encoded as UTF-8.
        return json.dumps(fields).encode() + b"\n"
