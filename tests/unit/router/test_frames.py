"""Frames are columns; columns that disagree break the contract and are never half applied."""

from __future__ import annotations

import struct

import pytest

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.columns import ids_from_bytes, ids_to_bytes
from services.router.dispatch.converters import finish_from_proto, frame_rows
from services.router.dispatch.work import FinishReason
from services.router.errors import ErrorKind
from services.router.logprobs import TokenLogprob


def columns(**changes: bytes) -> scheduler_pb2.Frame:
    """Two rows: sequence 7 with tokens 10 and 11, sequence 8 with token 12."""
    fields = {
        "sequence_ids": ids_to_bytes([7, 8]),
        "attempts": ids_to_bytes([0, 1]),
        "first_output_indices": ids_to_bytes([5, 0]),
        "token_offsets": ids_to_bytes([0, 2, 3]),
        "token_ids": ids_to_bytes([10, 11, 12]),
    }
    return scheduler_pb2.Frame(**(fields | changes))  # type: ignore[arg-type]


def test_ids_are_little_endian_and_unsigned() -> None:
    assert ids_to_bytes([1, 2**32 - 1]) == b"\x01\x00\x00\x00\xff\xff\xff\xff"
    assert ids_from_bytes(b"\x01\x00\x00\x00\xff\xff\xff\xff") == [1, 2**32 - 1]


def test_rows_are_cut_out_of_the_columns() -> None:
    first, second = frame_rows(columns())
    assert (first.sequence_id, first.attempt, first.first_output_index, first.token_ids) == (7, 0, 5, [10, 11])
    assert (second.sequence_id, second.attempt, second.first_output_index, second.token_ids) == (8, 1, 0, [12])
    assert first.logprobs == []


def test_logprobs_go_to_the_rows_whose_tokens_they_are_of() -> None:
    frame = columns()
    frame.logprobs.CopyFrom(
        sampling_pb2.TokenLogprobs(
            token_indices=ids_to_bytes([2]),
            logprobs=struct.pack("<f", -0.5),
            top_counts=ids_to_bytes([2]),
            top_token_ids=ids_to_bytes([12, 13]),
            top_logprobs=struct.pack("<2f", -0.5, -1.5),
        )
    )
    first, second = frame_rows(frame)
    assert first.logprobs == []
    assert second.logprobs == [TokenLogprob(12, -0.5, ((12, -0.5), (13, -1.5)))]


@pytest.mark.parametrize(
    "changes",
    [
        {"attempts": ids_to_bytes([0])},
        {"first_output_indices": b""},
        {"token_offsets": ids_to_bytes([0, 2])},
        {"token_offsets": ids_to_bytes([0, 2, 4])},
        {"token_offsets": ids_to_bytes([1, 2, 3])},
        {"token_ids": b"\x01\x02\x03"},
    ],
)
def test_columns_that_disagree_are_refused(changes: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"frame|multiple"):
        list(frame_rows(columns(**changes)))


def test_a_finish_has_a_reason_or_an_error() -> None:
    stop = finish_from_proto(scheduler_pb2.Finished(sequence_id=1, reason=sampling_pb2.FINISH_REASON_STOP))
    assert stop.reason is FinishReason.STOP
    assert stop.error is None
    error = scheduler_pb2.Error(code=8, message="the queue is full", retry_after_ms=1500)
    failed = finish_from_proto(scheduler_pb2.Finished(reason=sampling_pb2.FINISH_REASON_ERROR, error=error))
    assert failed.error is not None
    assert (failed.error.kind, failed.error.message) == (ErrorKind.OVERLOADED, "the queue is full")
    assert failed.error.retry_after == 1.5
    unset = finish_from_proto(scheduler_pb2.Finished())
    assert unset.error is not None
    assert unset.error.kind is ErrorKind.INTERNAL
