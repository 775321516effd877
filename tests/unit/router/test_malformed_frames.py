"""Whatever is in a frame: it is applied, or it is a ValueError that ends the one stream. It is never another error, and
what a sequence has received stays whole.
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.columns import ids_to_bytes
from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.scheduler_connection import SchedulerConnection
from services.router.dispatch.submission import Mailbox, Submission, SubmittedSequence
from services.router.dispatch.work import Generate
from services.router.errors import ApiError
from services.router.model import ModelInfo
from services.router.parameters.sampling import SamplingParams, StopConditions

# `make test-long` tries many times as much.
LONG = int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
PROMPT = [5, 6, 7, 8]
MAX_TOKENS = 4
MODEL = ModelInfo("m", (), 100, 300, frozenset({2}), SamplingParams(), "", 0, "", "")


class NoOwner:
    """Of a connection whose stream is never opened."""

    def has_tokenizer(self, info: ModelInfo) -> bool:
        return True

    async def on_hello(self, connection: SchedulerConnection, info: ModelInfo, bundle: bytes | None) -> None: ...

    def on_load(self, connection: SchedulerConnection) -> None: ...

    def on_lost(self, connection: SchedulerConnection, sequences: list[SubmittedSequence]) -> None: ...

    def on_refused(self, connection: SchedulerConnection, errors: Mapping[SubmittedSequence, ApiError]) -> None: ...

    def on_blamed(self, sequence: SubmittedSequence, error: ApiError) -> None: ...

    def on_settled(self) -> None: ...

    def on_gap(self, sequence: SubmittedSequence) -> None: ...

    def on_stalled(self, connection: SchedulerConnection, sequences: list[SubmittedSequence]) -> None: ...

    def on_behind(self, submission: Submission) -> None: ...


COLUMNS = st.binary(max_size=17) | st.lists(st.sampled_from([0, 1, 2, 3, 9, 2**32 - 1]), max_size=5).map(ids_to_bytes)
FLOATS = st.binary(max_size=9) | st.lists(st.sampled_from([-0.5, math.nan, -math.inf]), max_size=4).map(
    lambda values: struct.pack(f"<{len(values)}f", *values)
)
NUMBERS = st.sampled_from([0, 1, 2, 2**32 - 1])


@st.composite
def frames(draw: st.DrawFn) -> scheduler_pb2.Frame:
    """A right frame of sequence 1, some of whose fields hold anything."""
    frame = scheduler_pb2.Frame(
        sequence_ids=ids_to_bytes([1]),
        attempts=ids_to_bytes([0]),
        first_output_indices=ids_to_bytes([0]),
        token_offsets=ids_to_bytes([0, 2]),
        token_ids=ids_to_bytes([10, 11]),
        logprobs=sampling_pb2.TokenLogprobs(
            token_indices=ids_to_bytes([0, 1]),
            logprobs=struct.pack("<2f", -0.5, -0.5),
            top_counts=ids_to_bytes([1, 0]),
            top_token_ids=ids_to_bytes([10]),
            top_logprobs=struct.pack("<f", -0.5),
        ),
        prompt_logprobs=sampling_pb2.PromptLogprobs(
            sequence_ids=ids_to_bytes([1]),
            first_positions=ids_to_bytes([1]),
            offsets=ids_to_bytes([0, 3]),
            logprobs=struct.pack("<3f", -0.5, -0.5, -0.5),
            ranks=ids_to_bytes([1, 1, 1]),
            top_counts=ids_to_bytes([0]),
        ),
        prompt_logprobs_attempts=ids_to_bytes([0]),
        started=[scheduler_pb2.Started(sequence_id=1, num_cached_tokens=2)],
        finished=[scheduler_pb2.Finished(sequence_id=1, reason=sampling_pb2.FINISH_REASON_LENGTH)],
    )
    for _ in range(draw(st.integers(1, 3))):
        message = draw(st.sampled_from([frame, frame.logprobs, frame.prompt_logprobs]))
        names = [field.name for field in message.DESCRIPTOR.fields if field.type == field.TYPE_BYTES]
        name = draw(st.sampled_from(names))
        setattr(message, name, draw(FLOATS if name in ("logprobs", "top_logprobs") else COLUMNS))
    if draw(st.booleans()):
        finished = frame.finished[0]
        finished.reason = draw(st.sampled_from(sampling_pb2.FinishReason.values()))
        finished.error.code = draw(NUMBERS)
        finished.error.retry_after_ms = draw(NUMBERS)
        finished.embedding = draw(st.binary(max_size=5))
        frame.started[0].num_cached_tokens = draw(NUMBERS)
        frame.started[0].queue_us = draw(NUMBERS)
        frame.worker_losses.add(sequence_id=1, num_losses=draw(NUMBERS))
        frame.stalls.add(sequence_id=draw(NUMBERS), attempt=draw(NUMBERS))
    return frame


@settings(max_examples=300 * LONG, deadline=None)
@given(st.lists(frames(), max_size=3), st.booleans())
def test_whatever_is_in_a_frame_nothing_but_a_value_error_is_raised(
    sent: list[scheduler_pb2.Frame], wants_logprobs: bool
) -> None:
    asyncio.run(_apply(sent, 0 if wants_logprobs else None))


async def _apply(sent: list[scheduler_pb2.Frame], logprobs: int | None) -> None:
    connection = SchedulerConnection("nowhere", "router", NoOwner(), 1.0)
    submission = Submission(
        request_id="r", model=MODEL, prompt_token_ids=PROMPT, n=1, deadline=None, traceparent="",
        work=Generate(SamplingParams(logprobs=logprobs, prompt_logprobs=logprobs), StopConditions(MAX_TOKENS)),
        mailbox=Mailbox(Deliveries()),
    )  # fmt: skip
    connection.submit(submission.sequences, [1])
    (sequence,) = submission.sequences
    for frame in sent:
        try:
            connection._apply(frame)
        except ValueError:
            break
    assert len(sequence.output_token_ids) <= MAX_TOKENS
    assert len(sequence.logprobs) == (0 if logprobs is None else len(sequence.output_token_ids))
    assert len(submission.prompt_logprobs) <= len(PROMPT) - 1
    assert sequence.num_cached_tokens <= len(PROMPT)
