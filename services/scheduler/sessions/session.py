"""One router's session: the router's unfinished sequences, and what must still be sent to the router."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from quire.inference.v1 import model_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.converters import PromptLogprobColumns, TokenLogprob
from services.scheduler.core import Failure, FinishReason
from services.scheduler.sessions.frame import FrameBuilder
from services.scheduler.sessions.prompt_frames import PromptFrames
from shared import clock
from shared.release import own_release


class QueueTimer:
    """Measures the time from a sequence's arrival to the first plan that contains it, in microseconds."""

    __slots__ = ("_start", "queue_us")

    def __init__(self) -> None:
        self._start = clock.now()
        self.queue_us: int | None = None

    def stop(self, now: float) -> None:
        """Stops the timer at `now`. Later calls, when a preempted sequence starts again, change nothing."""
        if self.queue_us is None:
            self.queue_us = int((now - self._start) * 1e6)


class SequenceKey(NamedTuple):
    """The key of a sequence in the core: the router's session, the router's id of the sequence, and the attempt."""

    session: RouterSession
    sequence_id: int
    attempt: int
    request_id: str  # chosen by the client or the router; for logs and traces
    queue_timer: QueueTimer


class RouterSession:
    """Collects what must be sent to one router. The `add_` methods never wait. The task that writes to the router takes
    the collected messages as fast as the router reads.
    """

    def __init__(self, router_id: str) -> None:
        self.router_id = router_id
        # Keys of the router's unfinished sequences, by the id that the router gave the sequence.
        self.unfinished: dict[int, SequenceKey] = {}
        self._frame = FrameBuilder()
        self._full_frames: list[FrameBuilder] = []
        self._prompt_frames = PromptFrames()
        self._load: scheduler_pb2.Load | None = None
        self._news = asyncio.Event()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def add_sequence(self, sequence_id: int, attempt: int, request_id: str = "") -> SequenceKey:
        """Registers a sequence. A resubmission under the same id replaces the attempt before it."""
        key = SequenceKey(self, sequence_id, attempt, request_id, QueueTimer())
        self.unfinished[sequence_id] = key
        return key

    def add_token(self, key: SequenceKey, output_index: int, token_id: int, logprob: TokenLogprob | None) -> None:
        self._frame.add_token(key.sequence_id, key.attempt, output_index, token_id, logprob)
        self._news.set()

    def add_prompt_logprobs(self, key: SequenceKey, entries: PromptLogprobColumns) -> None:
        self._prompt_frames.add(key.sequence_id, key.attempt, entries)
        self._news.set()

    def add_started(self, key: SequenceKey, num_cached_tokens: int, num_host_cached_tokens: int = 0) -> None:
        """`num_host_cached_tokens`: those of the cached tokens that were in host memory."""
        self._frame.add_started(
            key.sequence_id, key.attempt, num_cached_tokens, num_host_cached_tokens, key.queue_timer.queue_us
        )
        self._news.set()

    def add_interruption(self, key: SequenceKey, reason: scheduler_pb2.InterruptionReason.ValueType) -> None:
        self._frame.add_interruption(key.sequence_id, key.attempt, reason)
        self._news.set()

    def add_stall(self, key: SequenceKey) -> None:
        self._frame.add_stall(key.sequence_id, key.attempt)
        self._news.set()

    def drop_stall(self, key: SequenceKey) -> None:
        """Takes a stall back that is not sent yet."""
        self._frame.drop_stall(key.sequence_id)

    def add_worker_loss(
        self, key: SequenceKey, num_losses: int, *, is_unproved: bool = False, is_held: bool = False
    ) -> None:
        """The arguments are those of WorkerLoss. The sequence may have been aborted."""
        self._frame.add_worker_loss(key.sequence_id, key.attempt, num_losses, is_unproved=is_unproved, is_held=is_held)
        self._news.set()

    def add_finished(
        self, key: SequenceKey, reason: FinishReason, failure: Failure | None = None, embedding: bytes | None = None
    ) -> None:
        self.unfinished.pop(key.sequence_id, None)
        self._frame.add_finished(key.sequence_id, key.attempt, reason, failure, embedding)
        if self._frame.is_full:
            self._full_frames.append(self._frame)
            self._frame = FrameBuilder()
        self._news.set()

    def set_load(self, load: scheduler_pb2.Load) -> None:
        """Sets the load to send. A load that was not sent yet is replaced."""
        self._load = load
        self._news.set()

    async def next_messages(self) -> list[scheduler_pb2.ConnectResponse]:
        """Returns messages with everything added since the last call. Waits until something is added."""
        await self._news.wait()
        self._news.clear()
        frames, self._full_frames = self._full_frames, []
        if self._frame:
            frames.append(self._frame)
            self._frame = FrameBuilder()
        # The log probabilities of a prompt are sent before the first output token of the prompt's sequences.
        built = [*self._prompt_frames.take(), *(frame.build() for frame in frames)]
        messages = [scheduler_pb2.ConnectResponse(frame=frame) for frame in built]
        if self._load is not None:
            messages.append(scheduler_pb2.ConnectResponse(load=self._load))
            self._load = None
        return messages


def hello_message(scheduler_id: str, model: model_pb2.ModelInfo, weight: int) -> scheduler_pb2.ConnectResponse:
    """Returns the first message to a router. `weight`: of the model's version."""
    hello = scheduler_pb2.SchedulerHello(
        scheduler_id=scheduler_id, model=model, model_weight=weight, release=own_release()
    )
    return scheduler_pb2.ConnectResponse(hello=hello)
