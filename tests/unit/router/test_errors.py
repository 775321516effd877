"""Errors fit into trailing metadata, whatever they quote."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from services.router.errors import MAX_BODY_BYTES, ApiError, ErrorKind, invalid, kind_of_code, overloaded
from services.router.rpc.status_details import details_metadata


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


@pytest.mark.parametrize("character", ["x", "é", "👋", "\x00", "%"])
def test_all_that_an_error_sends_fits_into_the_metadata_that_every_grpc_peer_takes(character: str) -> None:
    error = invalid(character * 100_000, "options." + character * 10_000)
    error.retry_after = 1.0
    sent = [("grpc-message", quote(error.details())), *error.metadata(), *details_metadata(error)]
    sizes = [len(name) + len(value) * (4 / 3 if name.endswith("-bin") else 1) + 32 for name, value in sent]
    assert sum(sizes) < 7500


def test_details_name_the_reason_the_field_and_when_to_try_again() -> None:
    reason, violations = unpacked(invalid("no", "options.n", "invalid_value"))
    assert (reason.reason, reason.domain) == ("INVALID_VALUE", "quire")
    assert [(v.field, v.description) for v in violations.field_violations] == [("options.n", "no")]
    reason, retry = unpacked(overloaded("busy", 2.5))
    assert (reason.reason, retry.retry_delay.ToMilliseconds()) == ("RATE_LIMIT_EXCEEDED", 2500)
    assert dict(details_metadata(overloaded("busy", 0.2)))["grpc-retry-pushback-ms"] == "200"
    assert "grpc-retry-pushback-ms" not in dict(details_metadata(invalid("no")))


def unpacked(error: ApiError) -> list[Any]:
    status = status_pb2.Status.FromString(dict(details_metadata(error))["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.kind.status.value[0], error.details())
    messages = []
    for detail in status.details:
        message = getattr(error_details_pb2, detail.TypeName().rpartition(".")[2])()
        assert detail.Unpack(message)
        messages.append(message)
    return messages


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
        (ErrorKind.UNDECODABLE, grpc.StatusCode.INTERNAL),
    ],
)
def test_each_kind_has_the_status_that_becomes_its_http_code(kind: ErrorKind, status: grpc.StatusCode) -> None:
    assert kind.status is status
    assert ApiError(kind, "why").body()["error"]["message"] == "why"


def test_a_scheduler_s_unexpected_code_is_an_internal_error() -> None:
    assert kind_of_code(8) is ErrorKind.OVERLOADED
    assert kind_of_code(0) is ErrorKind.INTERNAL
    assert kind_of_code(99) is ErrorKind.INTERNAL
