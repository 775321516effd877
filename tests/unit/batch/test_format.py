"""What a line of a batch may be, and what is said of one that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.batch.format import (
    Answer,
    RequestError,
    answer_line,
    custom_id_of,
    error_line,
    parse_request,
    read_output_line,
)

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def line(**changes: Any) -> bytes:
    return json.dumps({key: value for key, value in {**GOOD, **changes}.items() if value is not ...}).encode()


def test_a_request_is_taken_with_everything_in_its_body() -> None:
    body = {"prompt": "ü\ud83d", "deep": [{"x": 1.25}], "stream": False, "unknown": None}

    request = parse_request(b"\xef\xbb\xbf" + line(body=body, more="ignored") + b"\r")

    assert (request.custom_id, request.url, json.loads(request.body)) == ("a", "/v1/completions", body)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (None, "line_too_long", "more than 33554432 bytes"),
        (b"nonsense", "invalid_json", "the line is not JSON: Expecting value"),
        (b"\xff", "invalid_json", "not UTF-8"),
        (b"[" * 200_000, "invalid_json", "nested too deeply"),
        (b"9" * 5000, "invalid_json", "not JSON"),
        (b"[1]", "invalid_json", "not a JSON object"),
        (line(custom_id=...), "invalid_line", "'custom_id' is missing or not a string"),
        (line(custom_id=3), "invalid_line", "'custom_id' is missing or not a string"),
        (line(method="GET"), "invalid_line", '\'method\' is "GET": use "POST"'),
        (line(method=...), "invalid_line", "'method' is null"),
        (line(url="v1/completions"), "invalid_line", "use a path such as /v1/chat/completions"),
        (line(url="@evil.example/"), "invalid_line", "'url' is \"@evil.example/\""),
        (line(url="/v1/com pletions"), "invalid_line", "'url' is"),
        (line(url="/" + "ü" * 1000), "invalid_line", "…"),
        (line(body=[]), "invalid_line", "'body' is missing or not an object"),
        (line(body={"stream": True}), "stream_not_supported", "batch answers cannot be streamed"),
    ],
)
def test_a_bad_line_is_told(text: bytes | None, code: str, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_request(text)

    assert raised.value.code == code
    assert message in str(raised.value)
    assert len(str(raised.value)) < 300


def test_an_answer_is_one_line_in_openais_form() -> None:
    answer = answer_line("ü", Answer(200, "req-1", b'{\n  "text": "gr\xc3\xbcn\\n\\u2028"\n}'))

    assert answer.succeeded
    assert answer.data.count(b"\n") == 1
    fields = json.loads(answer.data)
    assert fields.pop("id").startswith("batch_req_")
    assert fields == {
        "custom_id": "ü",
        "response": {"status_code": 200, "request_id": "req-1", "body": {"text": "grün\n\u2028"}},
        "error": None,
    }
    assert read_output_line(answer.data) == ("ü", True)


def test_an_error_of_the_server_is_a_response_that_failed() -> None:
    answer = answer_line("a", Answer(400, "", b'{"error": {"message": "no"}}'))

    assert not answer.succeeded
    assert json.loads(answer.data)["response"]["body"] == {"error": {"message": "no"}}
    assert read_output_line(answer.data) == ("a", False)


@pytest.mark.parametrize(
    ("body", "told"),
    [(b"<html>", "<html>"), (b"\xff", "\ufffd"), (b'"\\ud83d"', "\ud83d"), (b"[" * 200_000, "[" * 200_000)],
)
def test_whatever_a_server_says_is_one_line_of_json(body: bytes, told: str) -> None:
    data = answer_line("a", Answer(502, "", body)).data

    assert json.loads(data)["response"]["body"] == told
    assert data.endswith(b"\n")


def test_a_request_without_an_answer_has_an_error() -> None:
    data = error_line(custom_id_of(b"nonsense"), RequestError("invalid_json", "why")).data

    fields = json.loads(data)
    assert (fields["custom_id"], fields["response"]) == (None, None)
    assert fields["error"] == {"code": "invalid_json", "message": "why"}
    assert read_output_line(data) == (None, False)


@pytest.mark.parametrize(
    "text", [b"nonsense\n", b"{}\n", b"[]\n", line(), b'{"custom_id": "a", "response": {"status_code": "x"}}\n']
)
def test_what_is_no_output_is_told_from_it(text: bytes) -> None:
    with pytest.raises(ValueError, match="a line that run-batch did not write"):
        read_output_line(text)
