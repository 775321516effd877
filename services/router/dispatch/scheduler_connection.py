"""The router's stream to one scheduler, which all requests on that scheduler share.

One task reads from the stream and one writes to it; no other task waits for the stream. When a frame arrives, the
reading task itself adds the frame's output to the sequences. When the stream ends, the connection gives its running
sequences back to its owner (the Placement) and reconnects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import grpc

from quire.inference.v1 import model_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.dispatch import converters
from services.router.dispatch.silence import SilenceWatch
from services.router.dispatch.submission import Submission, SubmittedSequence
from services.router.dispatch.suspicion import EXIT_ALONE, Suspicion
from services.router.errors import ApiError
from services.router.load import LoadTracker
from services.router.model import DEFAULT_WEIGHT, ModelInfo
from shared import clock
from shared.message_parts import PartJoiner, in_parts
from shared.patience import Patience
from shared.placement import Node
from shared.pulse import Pulse
from shared.release import IncompatibleReleaseError, check_release, own_release
from shared.transport import Channel, ClientStream, Connect, GrpcChannel, Method, StreamEndedError

logger = logging.getLogger(__name__)

# The stream is dropped if the scheduler does not accept a message within this time.
WRITE_STALL_SECONDS = 2.0
_MAX_OUTBOX = 8192
# Maximum number of exits whose proofs are awaited for sequences that have moved.
_MAX_UNPROVED = 1024
_FIRST_BACKOFF_SECONDS = 0.1
_LAST_BACKOFF_SECONDS = 2.0
_CALL_TIMEOUT_SECONDS = 5.0
_MAX_TOKENIZER_BYTES = 256 * 1024 * 1024

_SERVICE = "/quire.scheduler.v1.SchedulerService/"
CONNECT = Method(_SERVICE + "Connect", scheduler_pb2.ConnectRequest, scheduler_pb2.ConnectResponse)
GET_TOKENIZER = Method(_SERVICE + "GetTokenizer", model_pb2.GetTokenizerRequest, model_pb2.GetTokenizerResponse)
RESET_PREFIX_CACHE = Method(
    _SERVICE + "ResetPrefixCache", scheduler_pb2.ResetPrefixCacheRequest, scheduler_pb2.ResetPrefixCacheResponse
)

Stream = ClientStream[scheduler_pb2.ConnectRequest, scheduler_pb2.ConnectResponse]


class StreamLostError(Exception):
    """The stream has ended. The message is the reason, for the log."""


class ConnectionOwner(Protocol):
    """Receiver of a connection's events. Only `on_hello` awaits, because it can load a tokenizer."""

    def has_tokenizer(self, info: ModelInfo) -> bool:
        """Returns whether the tokenizer of this model is already loaded."""

    async def on_hello(self, connection: SchedulerConnection, info: ModelInfo, bundle: bytes | None) -> None:
        """Called after the scheduler's hello. `bundle`: the model's serialized TokenizerBundle if has_tokenizer
        returned False, else None. Raises StreamLostError to refuse the scheduler."""

    def on_load(self, connection: SchedulerConnection) -> None:
        """Called after each load message."""

    def on_lost(self, connection: SchedulerConnection, sequences: list[SubmittedSequence]) -> None:
        """Called when the stream has ended; `sequences` were running on it."""

    def on_refused(self, connection: SchedulerConnection, errors: Mapping[SubmittedSequence, ApiError]) -> None:
        """Called when the scheduler has ended sequences with errors. `errors`: all errors of one frame."""

    def on_blamed(self, sequence: SubmittedSequence, error: ApiError) -> None:
        """Called when the scheduler has ended a sequence with an error, because two workers have exited while they
        computed it alone."""

    def on_settled(self) -> None:
        """Called when it is known whether a worker exited that was computing a sequence that has moved since."""

    def on_gap(self, sequence: SubmittedSequence) -> None:
        """Called when tokens of a sequence were lost in transit."""

    def on_stalled(self, connection: SchedulerConnection, sequences: list[SubmittedSequence]) -> None:
        """Called when sequences stand still on a scheduler that suspects itself."""

    def on_behind(self, submission: Submission) -> None:
        """Called when the submission's client does not read the response, or reads it too slowly."""


class SchedulerConnection:
    def __init__(
        self,
        address: str,
        router_id: str,
        owner: ConnectionOwner,
        silence_seconds: float,
        connect: Connect = GrpcChannel,
        jitter: random.Random | None = None,
    ) -> None:
        """`silence_seconds`: least time without a message after which the stream is dropped; see Pulse. A scheduler
        sends load messages every 100 ms. `jitter`: spreads the times at which routers reconnect."""
        self.address = address
        # None until the scheduler has sent its hello on the current stream.
        self.info: ModelInfo | None = None
        # Weight of the model's version, from the hello.
        self.model_weight = DEFAULT_WEIGHT
        self.scheduler_id = ""
        self.load = LoadTracker()
        # Numbers of hello and load messages received since the router's start.
        self.num_hellos = 0
        self.num_loads = 0
        self._router_id = router_id
        self._owner = owner
        self._silence = SilenceWatch(Pulse(), silence_seconds)
        self._sequences: dict[int, SubmittedSequence] = {}
        # Suspicions of this scheduler against sequences that were taken from it before it had a proof, by the ids of
        # the sequences here.
        self._unproved: dict[int, Suspicion] = {}
        self._outbox: deque[scheduler_pb2.ConnectRequest] = deque()
        # Ids of sequences to abort. They are sent after the outbox, so that an abort never overtakes its submission.
        self._aborts: list[int] = []
        self._wake_writer = asyncio.Event()
        self._connect = connect
        self._jitter = jitter or random.Random()
        self._channel: Channel | None = None

    @property
    def is_ready(self) -> bool:
        return self.info is not None

    @property
    def num_queued(self) -> int:
        """Number of messages that wait to be sent to the scheduler."""
        return len(self._outbox)

    @property
    def num_unproved(self) -> int:
        """Number of sequences that were taken from this scheduler, and of which it does not know yet whether a worker
        has exited that computed them."""
        return len(self._unproved)

    @property
    def has_room(self) -> bool:
        return self.num_queued < _MAX_OUTBOX

    @property
    def node(self) -> Node:
        """The scheduler's id, load and cache size in the form that shared/placement.py needs to choose a scheduler."""
        last = self.load.last
        return Node(self.scheduler_id, self.load.outstanding_tokens, last.num_blocks * last.block_size)

    @property
    def has_workers(self) -> bool:
        """Whether the scheduler has reported a ready worker group."""
        return self.load.last.num_ready_groups > 0

    @property
    def lacks_workers(self) -> bool:
        """Whether the scheduler has reported that it has no ready worker group."""
        return self.load.has_report and not self.has_workers

    @property
    def is_draining(self) -> bool:
        return self.load.last.is_draining

    @property
    def is_struggling(self) -> bool:
        """Whether the scheduler has reported that it may be the cause of its workers' silence."""
        return self.load.last.is_struggling

    @property
    def is_slow(self) -> bool:
        """Whether the scheduler has reported that one of its workers is late, or soon will be."""
        return self.load.last.is_slow

    def has_kept(self, sequence: SubmittedSequence) -> bool:
        """Returns whether the scheduler accepted `sequence` when the router submitted it. A refusal at that time would
        have arrived before the second load message after the submission. Call it only for a sequence that was last
        submitted to this scheduler."""
        return self.num_loads - sequence.num_loads_at_submit >= 2

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    @property
    def sequences(self) -> list[SubmittedSequence]:
        """The sequences that run on this scheduler now."""
        return list(self._sequences.values())

    def submit(self, sequences: Sequence[SubmittedSequence], sequence_ids: Sequence[int]) -> None:
        """Starts or resumes sequences of one submission on this scheduler, under new ids."""
        submission = sequences[0].submission
        for sequence, sequence_id in zip(sequences, sequence_ids, strict=True):
            sequence.connection = self
            sequence.sequence_id = sequence_id
            sequence.submitted_at = clock.now()
            sequence.num_tokens_at_submit = len(sequence.output_token_ids)
            sequence.num_worker_losses_at_submit = sequence.num_worker_losses
            sequence.is_held = False
            sequence.num_loads_at_submit = self.num_loads
            self._sequences[sequence_id] = sequence
        now = asyncio.get_running_loop().time()
        self._outbox.extend(converters.submits_to_proto(submission, sequences, now))
        self._wake_writer.set()
        self.load.sent(submission.outstanding_tokens(sequences))

    def drop(self, sequence: SubmittedSequence, *, abort: bool) -> None:
        """Forgets a running sequence. `abort`: whether also to tell the scheduler to end the sequence."""
        if self._sequences.pop(sequence.sequence_id, None) is None:
            return
        sequence.connection = None
        self._await_proof(sequence)
        if abort:
            self._aborts.append(sequence.sequence_id)
            self._wake_writer.set()

    def _await_proof(self, sequence: SubmittedSequence) -> None:
        """Remembers what this scheduler suspects a sequence of, which goes on elsewhere, until the scheduler knows."""
        is_suspect = sequence.num_worker_losses >= EXIT_ALONE and sequence.suspicion.is_unproved
        if not is_suspect or sequence.has_brought_an_exit or sequence.is_over:
            return
        if len(self._unproved) < _MAX_UNPROVED:
            self._unproved[sequence.sequence_id] = sequence.suspicion
        else:
            sequence.suspicion.drop()

    async def reset_prefix_cache(self) -> None:
        """Clears the scheduler's prefix cache. Raises StreamEndedError if the scheduler does not answer."""
        if self._channel is not None:
            request = scheduler_pb2.ResetPrefixCacheRequest()
            await self._channel.call(RESET_PREFIX_CACHE, request, _CALL_TIMEOUT_SECONDS)

    async def run(self) -> None:
        """Keeps the stream connected until cancelled."""
        backoff = _FIRST_BACKOFF_SECONDS
        last_reason = ""
        channel = self._channel = self._connect(self.address)
        try:
            while True:
                try:
                    try:
                        await self._session(channel)
                    except StreamLostError as lost:
                        if self.is_ready:
                            backoff = _FIRST_BACKOFF_SECONDS
                        # Each reason is logged as a warning only once; otherwise a missing scheduler would fill the
                        # log.
                        is_news = self.is_ready or str(lost) != last_reason
                        last_reason = str(lost)
                        level = logging.WARNING if is_news else logging.DEBUG
                        logger.log(level, "no stream with scheduler %s: %s", self.address, lost)
                    finally:
                        self._close()
                except Exception:
                    # A bug in one session must not disconnect the scheduler permanently.
                    logger.exception("the session with scheduler %s failed", self.address)
                await asyncio.sleep(backoff * self._jitter.uniform(0.5, 1.0))
                backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)
        finally:
            await channel.close()

    async def _session(self, channel: Channel) -> None:
        """Runs one stream from hello to its end. Always raises StreamLostError."""
        stream: Stream = channel.open(CONNECT, wait_for_ready=True)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._greet(channel, stream)
            tasks = [
                asyncio.create_task(self._read(stream)),
                asyncio.create_task(self._write(stream)),
                asyncio.create_task(self._watch()),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise StreamLostError("the router dropped the stream")
        except StreamEndedError as ended:
            is_closed = ended.code is grpc.StatusCode.OK
            reason = "it closed the stream" if is_closed else f"{ended.code.name.lower()}: {ended.details}"
            raise StreamLostError(reason) from None
        except ValueError as error:  # the scheduler sent a message that violates the protocol
            raise StreamLostError(str(error)) from None
        finally:
            stream.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, channel: Channel, stream: Stream) -> None:
        hello = scheduler_pb2.RouterHello(router_id=self._router_id, release=own_release())
        await stream.write(scheduler_pb2.ConnectRequest(hello=hello))
        first = await stream.read()
        if first.WhichOneof("message") != "hello":
            raise StreamLostError("its first message is not a hello")
        try:
            check_release(first.hello, "the scheduler")
        except IncompatibleReleaseError as error:
            raise StreamLostError(str(error)) from None
        info = converters.model_from_proto(first.hello.model)
        bundle = None if self._owner.has_tokenizer(info) else await self._fetch_tokenizer(channel, info)
        self.scheduler_id = first.hello.scheduler_id
        self.model_weight = first.hello.model_weight if first.hello.HasField("model_weight") else DEFAULT_WEIGHT
        self.load = LoadTracker()
        self.num_hellos += 1
        await self._owner.on_hello(self, info, bundle)

    async def _fetch_tokenizer(self, channel: Channel, info: ModelInfo) -> bytes:
        chunks = []
        size = 0
        async for response in channel.replies(GET_TOKENIZER, model_pb2.GetTokenizerRequest(), timeout_s=60):
            chunks.append(response.chunk)
            size += len(response.chunk)
            if size > min(info.tokenizer_bytes, _MAX_TOKENIZER_BYTES):
                raise StreamLostError("its tokenizer is larger than announced")
        return b"".join(chunks)

    async def _read(self, stream: Stream) -> None:
        loop_time = asyncio.get_running_loop().time
        joiner = PartJoiner[scheduler_pb2.ConnectResponse]()
        while True:
            received = await stream.read()
            self._silence.heard()
            response = joiner.add(received)
            if response is None:
                continue
            kind = response.WhichOneof("message")
            if kind == "frame":
                self._apply(response.frame)
            elif kind == "load":
                self.load.report(converters.load_from_proto(response.load), loop_time())
                self.num_loads += 1
                self._owner.on_load(self)

    async def _write(self, stream: Stream) -> None:
        while True:
            await self._wake_writer.wait()
            self._wake_writer.clear()
            try:
                while self._outbox or self._aborts:
                    if self._outbox:
                        message = self._outbox.popleft()
                    else:
                        message = converters.abort_to_proto(self._aborts)
                        self._aborts = []
                    for part in in_parts(message):
                        async with Patience(WRITE_STALL_SECONDS):
                            await stream.write(part)
            except TimeoutError:
                raise StreamLostError(f"it accepted no message for {WRITE_STALL_SECONDS} s") from None

    async def _watch(self) -> None:
        limit = await self._silence.run()
        raise StreamLostError(f"it sent nothing for {limit:.1f} s")

    def _apply(self, frame: scheduler_pb2.Frame) -> None:
        """Applies a frame to its sequences. Raises ValueError if the frame violates the protocol."""
        sequences = self._sequences
        for started in frame.started:
            sequence = sequences.get(started.sequence_id)
            if sequence is not None and sequence.attempt == started.attempt:
                num_prompt_tokens = len(sequence.submission.prompt_token_ids)
                sequence.num_cached_tokens = min(started.num_cached_tokens, num_prompt_tokens)
                sequence.num_host_cached_tokens = min(started.num_host_cached_tokens, sequence.num_cached_tokens)
                if sequence.scheduled_at is None and started.HasField("queue_us"):
                    sequence.scheduled_at = sequence.submitted_at + started.queue_us / 1e6
        if frame.HasField("prompt_logprobs"):
            self._apply_prompt_logprobs(frame)
        behind: dict[int, Submission] = {}
        for row in converters.frame_rows(frame):
            sequence = sequences.get(row.sequence_id)
            if sequence is None or sequence.attempt != row.attempt:
                continue
            num_received = len(sequence.output_token_ids)
            if row.first_output_index < num_received:
                continue
            if row.first_output_index > num_received:
                self._owner.on_gap(sequence)
                continue
            _check_row(row, sequence)
            sequence.output_token_ids += row.token_ids
            if sequence.submission.work.wants_logprobs:
                sequence.logprobs += row.logprobs
            mailbox = sequence.submission.mailbox
            mailbox.put(sequence, len(row.token_ids), row.logprobs.num_candidates)
            if mailbox.is_behind:
                behind[id(sequence.submission)] = sequence.submission
        for loss in frame.worker_losses:
            sequence = sequences.get(loss.sequence_id)
            if sequence is None:
                self._settle(loss)
            elif sequence.attempt == loss.attempt:
                sequence.suspect(loss.num_losses, is_unproved=loss.is_unproved, is_held=loss.is_held)
        for interruption in frame.interruptions:
            sequence = sequences.get(interruption.sequence_id)
            if sequence is not None and sequence.attempt == interruption.attempt:
                reason = interruption.reason
                sequence.num_preemptions += reason == scheduler_pb2.INTERRUPTION_REASON_PREEMPTED
                sequence.num_parts_lost += reason == scheduler_pb2.INTERRUPTION_REASON_WORKER_LOST
        # Sequences with errors stay registered until the whole frame is read. If the rest of the frame is invalid, the
        # owner gets them back with the stream's other sequences.
        errors: dict[SubmittedSequence, ApiError] = {}
        blamed: dict[SubmittedSequence, ApiError] = {}
        for message in frame.finished:
            sequence = sequences.get(message.sequence_id)
            if sequence is None or sequence.attempt != message.attempt or sequence in errors or sequence in blamed:
                continue
            finish = converters.finish_from_proto(message)
            if finish.error is None and sequence.choice_index == 0 and sequence.submission.lacks_prompt_logprobs:
                raise ValueError("a sequence ended without its prompt's log probabilities")
            if finish.error is not None:
                (blamed if finish.is_blamed else errors)[sequence] = finish.error
                continue
            self.drop(sequence, abort=False)
            if finish.reason is not None:
                sequence.embedding = finish.embedding
                sequence.finish(finish.reason)
        if errors:
            for sequence in errors:
                self.drop(sequence, abort=False)
            self._owner.on_refused(self, errors)
        for sequence, error in blamed.items():
            self.drop(sequence, abort=False)
            self._owner.on_blamed(sequence, error)
        for submission in behind.values():
            self._owner.on_behind(submission)
        stalled = {
            sequence: None
            for stall in frame.stalls
            if (sequence := sequences.get(stall.sequence_id)) is not None and sequence.attempt == stall.attempt
        }
        if stalled:
            # The next load will say so, too.
            self.load.struggles()
            self._owner.on_stalled(self, list(stalled))

    def _settle(self, loss: scheduler_pb2.WorkerLoss) -> None:
        suspicion = self._unproved.get(loss.sequence_id)
        if suspicion is not None and not loss.is_unproved:
            del self._unproved[loss.sequence_id]
            suspicion.settle(loss.num_losses)
            self._owner.on_settled()

    def _apply_prompt_logprobs(self, frame: scheduler_pb2.Frame) -> None:
        for row in converters.prompt_rows(frame):
            sequence = self._sequences.get(row.sequence_id)
            if sequence is None or sequence.attempt != row.attempt:
                continue
            received = sequence.submission.prompt_logprobs
            if row.first_index < len(received):
                continue
            if row.first_index > len(received):
                self._owner.on_gap(sequence)
                continue
            if len(received) + len(row.entries) > len(sequence.submission.prompt_token_ids) - 1:
                raise ValueError("a frame contains more log probabilities than its prompt has tokens")
            received += row.entries
            sequence.submission.mailbox.put(sequence)

    def _close(self) -> None:
        """Ends the session and returns its sequences to the owner. Idempotent."""
        was_ready = self.is_ready
        self.info = None
        self._outbox.clear()
        self._aborts.clear()
        self._wake_writer.clear()
        sequences = list(self._sequences.values())
        self._sequences.clear()
        for sequence in sequences:
            sequence.connection = None
            if not sequence.has_brought_an_exit:
                sequence.suspicion.drop()
        unproved = list(self._unproved.values())
        self._unproved.clear()
        for suspicion in unproved:
            suspicion.drop()
        if unproved:
            self._owner.on_settled()
        if was_ready or sequences:
            self._owner.on_lost(self, sequences)


def _check_row(row: converters.FrameRow, sequence: SubmittedSequence) -> None:
    """Raises ValueError if a row has more tokens than requested, or tokens without the requested log probabilities."""
    submission = sequence.submission
    if len(sequence.output_token_ids) + len(row.token_ids) > submission.work.max_tokens:
        raise ValueError(f"a frame brings a sequence to more than its maximum of {submission.work.max_tokens} tokens")
    if submission.work.wants_logprobs and len(row.logprobs) != len(row.token_ids):
        raise ValueError(f"a frame has {len(row.logprobs)} log probabilities for {len(row.token_ids)} tokens")
