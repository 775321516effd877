"""Errors fit into trailing metadata, whatever they quote."""

from __future__ import annotations

import json

import grpc
import pytest

from services.router.errors import MAX_BODY_BYTES, ApiError, ErrorKind, invalid, kind_of_code, overloaded


@pytest.mark.parametrize("character", ["x", "é", "👋", "\x00"])
def test_a_long_message_is_cut_to_ascii_json_within_the_limit(character: str) -> None:
    error = invalid(character * 100_000, "messages[0]." + character * 10_000)
    ((key, text),) = error.metadata()
    assert key == "quire-error"
    assert text.isascii()
    assert len(text) <= MAX_BODY_BYTES
    assert json.loads(text)["error"]["message"].startswith(character)


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    assert dict(overloaded("busy", 0.2).metadata())["retry-after"] == "1"
    assert dict(overloaded("busy", 2.5).metadata())["retry-after"] == "3"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (ErrorKind.INVALID_REQUEST, grpc.StatusCode.INVALID_ARGUMENT),
        (ErrorKind.CONTEXT_LENGTH, grpc.StatusCode.INVALID_ARGUMENT),
        (ErrorKind.UNAUTHENTICATED, grpc.StatusCode.UNAUTHENTICATED),
        (ErrorKind.MODEL_NOT_FOUND, grpc.StatusCode.NOT_FOUND),
        (ErrorKind.NOT_FOUND, grpc.StatusCode.NOT_FOUND),
        (ErrorKind.OVERLOADED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ErrorKind.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
        (ErrorKind.TIMEOUT, grpc.StatusCode.DEADLINE_EXCEEDED),
        (ErrorKind.INTERNAL, grpc.StatusCode.INTERNAL),
    ],
)
def test_each_kind_has_the_status_that_becomes_its_http_code(kind: ErrorKind, status: grpc.StatusCode) -> None:
    assert kind.status is status
    assert ApiError(kind, "why").body()["error"]["message"] == "why"


def test_a_scheduler_s_unexpected_code_is_an_internal_error() -> None:
    assert kind_of_code(8) is ErrorKind.OVERLOADED
    assert kind_of_code(0) is ErrorKind.INTERNAL
    assert kind_of_code(99) is ErrorKind.INTERNAL
