"""A worker's columns that disagree are refused before anything of them is used."""

from __future__ import annotations

import struct
from array import array

import pytest

from quire.inference.v1 import sampling_pb2
from services.scheduler.converters import TokenLogprob, logprobs_from_proto


def u32s(*values: int) -> bytes:
    return array("I", values).tobytes()


def f32s(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def columns(**changes: bytes) -> sampling_pb2.TokenLogprobs:
    """Of tokens 0 and 2, the first with one likeliest token and the other with none."""
    fields = {
        "token_indices": u32s(0, 2),
        "logprobs": f32s(-0.5, -1.0),
        "top_counts": u32s(1, 0),
        "top_token_ids": u32s(7),
        "top_logprobs": f32s(-0.5),
    }
    return sampling_pb2.TokenLogprobs(**(fields | changes))


def test_log_probabilities_go_to_their_tokens() -> None:
    assert logprobs_from_proto(columns()) == {
        0: TokenLogprob(f32s(-0.5), u32s(7), f32s(-0.5)),
        2: TokenLogprob(f32s(-1.0), b"", b""),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"token_indices": u32s(0)},
        {"token_indices": b"123"},
        {"logprobs": f32s(-0.5)},
        {"logprobs": b"1234567"},
        {"top_counts": u32s(1)},
        {"top_counts": u32s(2**32 - 1, 1)},
        {"top_token_ids": b""},
        {"top_logprobs": f32s(-0.5, -0.5)},
    ],
)
def test_columns_that_disagree_are_refused(changes: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"different lengths|multiple of item size"):
        logprobs_from_proto(columns(**changes))
