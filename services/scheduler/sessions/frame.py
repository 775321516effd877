"""Builds Frame messages: new tokens, starts, ends and lost workers of one router's sequences."""

from __future__ import annotations

from array import array

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.converters import FINISH_REASONS, TokenLogprob, error_to_proto
from services.scheduler.core import U32, Failure, FinishReason

# A frame is full once its embeddings have this many bytes together. The last embedding can exceed the limit.
MAX_EMBEDDING_BYTES = 1 << 20


class FrameBuilder:
    """Collects one frame until the task that writes to the router takes it. The frame covers one step if the router
    keeps up, and several steps if the router lags.
    """

    __slots__ = (
        "_attempts",
        "_finished",
        "_first_output_indices",
        "_interruptions",
        "_logprobs",
        "_num_embedding_bytes",
        "_sequence_ids",
        "_stalls",
        "_started",
        "_token_ids",
        "_worker_losses",
    )

    def __init__(self) -> None:
        self._sequence_ids = array(U32)
        self._attempts = array(U32)
        self._first_output_indices = array(U32)
        self._token_ids = array(U32)
        self._logprobs: list[tuple[int, TokenLogprob]] = []
        self._started: list[scheduler_pb2.Started] = []
        self._finished: list[scheduler_pb2.Finished] = []
        self._num_embedding_bytes = 0
        self._worker_losses: list[scheduler_pb2.WorkerLoss] = []
        self._interruptions: list[scheduler_pb2.Interruption] = []
        # By the id of the sequence.
        self._stalls: dict[int, scheduler_pb2.Stall] = {}

    def __bool__(self) -> bool:
        return any((
            self._sequence_ids, self._started, self._finished, self._worker_losses, self._interruptions, self._stalls,
        ))  # fmt: skip

    def add_started(
        self, sequence_id: int, attempt: int, num_cached_tokens: int, num_host_cached_tokens: int, queue_us: int | None
    ) -> None:
        self._started.append(
            scheduler_pb2.Started(
                sequence_id=sequence_id,
                attempt=attempt,
                num_cached_tokens=num_cached_tokens,
                num_host_cached_tokens=num_host_cached_tokens,
                queue_us=queue_us,
            )
        )

    def add_interruption(
        self, sequence_id: int, attempt: int, reason: scheduler_pb2.InterruptionReason.ValueType
    ) -> None:
        self._interruptions.append(scheduler_pb2.Interruption(sequence_id=sequence_id, attempt=attempt, reason=reason))

    def add_stall(self, sequence_id: int, attempt: int) -> None:
        self._stalls[sequence_id] = scheduler_pb2.Stall(sequence_id=sequence_id, attempt=attempt)

    def drop_stall(self, sequence_id: int) -> None:
        self._stalls.pop(sequence_id, None)

    def add_worker_loss(
        self, sequence_id: int, attempt: int, num_losses: int, *, is_unproved: bool, is_held: bool
    ) -> None:
        self._worker_losses.append(
            scheduler_pb2.WorkerLoss(
                sequence_id=sequence_id,
                attempt=attempt,
                num_losses=num_losses,
                is_unproved=is_unproved,
                is_held=is_held,
            )
        )

    def add_token(
        self, sequence_id: int, attempt: int, output_index: int, token_id: int, logprob: TokenLogprob | None
    ) -> None:
        if self._stalls:
            # The sequence runs again.
            self.drop_stall(sequence_id)
        if logprob is not None:
            self._logprobs.append((len(self._token_ids), logprob))
        self._sequence_ids.append(sequence_id)
        self._attempts.append(attempt)
        self._first_output_indices.append(output_index)
        self._token_ids.append(token_id)

    @property
    def is_full(self) -> bool:
        """Whether the embeddings in this frame are so large that further output must go into a new frame."""
        return self._num_embedding_bytes >= MAX_EMBEDDING_BYTES

    def add_finished(
        self,
        sequence_id: int,
        attempt: int,
        reason: FinishReason,
        failure: Failure | None = None,
        embedding: bytes | None = None,
    ) -> None:
        finished = scheduler_pb2.Finished(
            sequence_id=sequence_id, attempt=attempt, reason=FINISH_REASONS[reason], embedding=embedding or b""
        )
        self._num_embedding_bytes += len(finished.embedding)
        if failure is not None:
            finished.error.CopyFrom(error_to_proto(failure))
        self._finished.append(finished)

    def build(self) -> scheduler_pb2.Frame:
        frame = scheduler_pb2.Frame(
            sequence_ids=self._sequence_ids.tobytes(),
            attempts=self._attempts.tobytes(),
            first_output_indices=self._first_output_indices.tobytes(),
            token_offsets=array(U32, range(len(self._token_ids) + 1)).tobytes(),
            token_ids=self._token_ids.tobytes(),
            started=self._started,
            finished=self._finished,
            worker_losses=self._worker_losses,
            interruptions=self._interruptions,
            stalls=self._stalls.values(),
        )
        if self._logprobs:
            frame.logprobs.CopyFrom(self._logprob_columns())
        return frame

    def _logprob_columns(self) -> sampling_pb2.TokenLogprobs:
        entries = [entry for _, entry in self._logprobs]
        return sampling_pb2.TokenLogprobs(
            token_indices=array(U32, (index for index, _ in self._logprobs)).tobytes(),
            logprobs=b"".join(entry.logprob for entry in entries),
            top_counts=array(U32, (len(entry.top_token_ids) // 4 for entry in entries)).tobytes(),
            top_token_ids=b"".join(entry.top_token_ids for entry in entries),
            top_logprobs=b"".join(entry.top_logprobs for entry in entries),
        )
