"""What every HTTP answer of the tests is held against: it finds what is wrong, and nothing where all is well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fidelity import own_document, published
from tests.fidelity.answer import Answer

CHAT = "/v1/chat/completions"
CHUNK: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}],
    "system_fingerprint": "f",
}
ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": None}}


def stream(*events: Any, rest: str = "data: [DONE]\n\n", is_whole: bool = True) -> Answer:
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + rest
    return Answer("POST", CHAT, 200, "text/event-stream", body.encode(), is_whole)


def whole(path: str, status: int, value: Any, verb: str = "GET", content_type: str = "application/json") -> Answer:
    return Answer(verb, path, status, content_type, json.dumps(value).encode())


@pytest.mark.parametrize(
    "answer",
    [
        stream(CHUNK, {**CHUNK, "usage": None}),
        stream(CHUNK, ERROR, rest=""),
        stream(CHUNK, rest='data: {"id', is_whole=False),
        whole("/health", 200, {"status": "ok"}),
        whole("/v1/models/org/name", 404, ERROR),
        whole("/v2/models/a/b/ready", 200, {"name": "a/b", "ready": True}),
        whole("/v1/models/", 200, {"object": "list", "data": []}),
        Answer("HEAD", "/health", 200, "application/json", b""),
        Answer("GET", "/", 200, "text/plain", b"Ollama is running"),
        whole("/nowhere", 404, ERROR),
    ],
)
def test_what_is_right_passes(answer: Answer) -> None:
    assert [*own_document.problems(answer), *published.problems(answer)] == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (stream(CHUNK, {**CHUNK, "created": "now"}), "/created"),
        (stream({**CHUNK, "surprise": 1}), "surprise"),
        (whole("/health", 200, {"status": "fine"}), "/status"),
        (whole("/health", 418, {}), "knows no 418"),
        (whole("/health", 503, {"error": {"message": "m"}}), "type"),
        (whole("/health", 200, {}, content_type="text/plain"), "knows no text/plain"),
        (whole("/health/", 200, {"status": "fine"}), "/status"),
        (whole("/nowhere", 200, {}), "is not in the document"),
        # The last of the paths that fits has no /ready.
        (whole("/v2/models/a/ready", 200, {"name": "a", "platform": "quire"}), "ready"),
    ],
)
def test_what_is_wrong_with_our_document_is_said(answer: Answer, words: str) -> None:
    assert any(words in problem for problem in own_document.problems(answer))


def test_what_openais_sdk_would_not_take_is_said() -> None:
    (problem,) = [found for found in published.problems(stream({**CHUNK, "id": 5})) if found.startswith("the SDK")]
    assert "id" in problem


@pytest.mark.skipif(not published.DOCUMENT.exists(), reason="OpenAI's OpenAPI document is not here")
def test_what_openais_schema_does_not_allow_is_said() -> None:
    problems = published.problems(whole("/v1/models", 200, {"object": "list", "data": [{"id": "m"}]}))
    assert any(found.startswith("OpenAI's schema") and "created" in found for found in problems)


def test_each_api_s_streams_and_errors_are_told_apart() -> None:
    broken = {"type": "error", "error": {"type": "api_error", "message": "m"}}
    stop = {"type": "message_stop"}
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in (stop, broken))
    answer = Answer("POST", "/v1/messages", 200, "text/event-stream", body.encode())
    assert own_document.problems(answer) == []
    wrong = Answer("POST", "/v1/messages", 200, "text/event-stream", body.replace("api_error", "fault").encode())
    assert len(own_document.problems(wrong)) == 1
    line = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "response": "x", "done": False}
    lines = "".join(json.dumps(value) + "\n" for value in (line, {"error": "m"}))
    answer = Answer("POST", "/api/generate", 200, "application/x-ndjson", lines.encode())
    assert own_document.problems(answer) == []
    wrong = Answer("POST", "/api/chat", 200, "application/x-ndjson", lines.encode())
    assert any("response" in problem for problem in own_document.problems(wrong))


@pytest.mark.skipif(not published.DOCUMENT.exists(), reason="OpenAI's OpenAPI document is not here")
def test_a_response_whose_error_is_null_is_no_error() -> None:
    problems = published.problems(whole("/v1/responses", 200, {"object": "response", "error": None}, "POST"))
    assert any("'output' is a required property" in found.replace('"', "'") for found in problems)
    assert any(found.startswith("the SDK") for found in problems)


LOGPROBS = {"text_offset": [0, 1], "tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": [None, {}]}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_an_echoed_prompt_s_first_token_has_no_log_probability(is_stream: bool) -> None:
    choice = {"index": 0, "text": "ab", "logprobs": LOGPROBS, "finish_reason": "stop", "stop_reason": None}
    value = {
        "id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice],
        "system_fingerprint": "f",
    }  # fmt: skip
    kind = "text/event-stream" if is_stream else "application/json"
    text = f"data: {json.dumps(value)}\n\n" if is_stream else json.dumps(value)
    assert published.problems(Answer("POST", "/v1/completions", 200, kind, text.encode())) == []
    wrong = text.replace('"text_offset": [0', '"text_offset": [null')
    assert published.problems(Answer("POST", "/v1/completions", 200, kind, wrong.encode())) != []


def test_only_a_broken_connection_may_end_within_an_event() -> None:
    with pytest.raises(AssertionError, match="a stream ends with"):
        own_document.problems(stream(CHUNK, rest="data: {"))
