"""OpenAI's batch format: a request per line of the input, an answer per line of the output."""

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
    """`body`: JSON."""

    custom_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said. `body` may be anything; errors are OpenAI's objects, as a rule."""

    status: int
    request_id: str
    body: bytes


class RequestError(Exception):
    """Why a line has no answer; `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class OutputLine:
    """`data` ends with a newline."""

    data: bytes
    succeeded: bool


def custom_id_of(line: bytes | None) -> str | None:
    """Of a line of the input or the output, whatever else is wrong with it; None where it has none."""
    try:
        value = _object(line).get("custom_id")
    except RequestError:
        return None
    return value if isinstance(value, str) else None


def parse_request(line: bytes | None) -> BatchRequest:
    """`line`: None for one that was too long to be kept. Raises RequestError."""
    fields = _object(line)
    custom_id, method, url, body = (fields.get(name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str):
        raise _invalid("'custom_id' is missing, or no string")
    if method != _METHOD:
        raise _invalid(f"'method' is {_short(method)}: use \"POST\"")
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise _invalid(f"'url' is {_short(url)}: use a path such as /v1/chat/completions")
    if not isinstance(body, dict):
        raise _invalid("'body' is missing, or no object")
    if body.get("stream"):
        raise RequestError("stream_not_supported", "'body.stream' is set: a line has one answer, as a whole")
    return BatchRequest(custom_id, url, json.dumps(body).encode())


def answer_line(custom_id: str, answer: Answer) -> OutputLine:
    body: Any = answer.body.decode(errors="replace")
    # What is not JSON is told as it is.
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(body)
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": body}
    return OutputLine(_dump(custom_id, response, None), 200 <= answer.status < 300)


def error_line(custom_id: str | None, error: RequestError) -> OutputLine:
    return OutputLine(_dump(custom_id, None, {"code": error.code, "message": str(error)}), False)


def read_output_line(data: bytes) -> tuple[str | None, bool]:
    """The custom id of a line of the output, and whether its request succeeded. Raises ValueError where it is none."""
    try:
        fields = _object(data)
        response = fields["response"]
        succeeded = response is not None and 200 <= response["status_code"] < 300
        custom_id = fields["custom_id"]
    except (RequestError, LookupError, TypeError):
        raise ValueError("this is no line of run-batch's output") from None
    return custom_id if isinstance(custom_id, str) else None, succeeded


def _object(line: bytes | None) -> dict[str, Any]:
    """Raises RequestError."""
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
        raise RequestError("invalid_json", "the line is no JSON object")
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
    except UnicodeEncodeError:  # Half a surrogate pair has no UTF-8.
        return json.dumps(fields).encode() + b"\n"
