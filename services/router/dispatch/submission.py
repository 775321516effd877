"""A running request: its sequences as this router knows them, independent of the scheduler that runs them.

Ownership: the connection's reader appends to a sequence's output, and the request's own task takes from it. Both run on
the same event loop. New output is appended to output that is not taken yet, so a slow client costs no more memory than
its answer's tokens.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Protocol

from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.refusals import Refusals, RefusingScheduler
from services.router.dispatch.suspicion import EXIT_ALONE, Suspicion
from services.router.dispatch.work import FinishReason, Work
from services.router.errors import ApiError
from services.router.logprobs import PromptLogprobs, TokenLogprobs
from services.router.model import ModelInfo
from shared import clock
from shared.stall_moves import StallMoves

# Limits for output that a client has not read. Above MAX_UNREAD_BYTES, the request's sequences pause at once. Above
# MAX_UNREAD_BYTES_OF_IDLE, they pause if the client has read nothing for IDLE_CLIENT_SECONDS
# (docs/adr/0021-answers-in-pieces.md).
MAX_UNREAD_BYTES = 2**20
MAX_UNREAD_BYTES_OF_IDLE = 4096
IDLE_CLIENT_SECONDS = 1.0
# Approximate memory of an unread token, and of each candidate in its log probabilities.
_TOKEN_BYTES = 64
_CANDIDATE_BYTES = 8

_turn_ids = itertools.count(1)
_arrivals = itertools.count()


def new_turn_id() -> int:
    """Returns an id for a client's request. Schedulers count the work of all sequences with the same id together."""
    return next(_turn_ids)


class Mailbox:
    """Wakes the task that serves a request when one of the request's sequences has new output, or when the request
    fails. Each request has one such task."""

    __slots__ = (
        "_busy_since",
        "_deliveries",
        "_error",
        "_news",
        "_num_unread_bytes",
        "_put_at",
        "_waiter",
        "news_since",
        "turn_id",
    )

    def __init__(self, deliveries: Deliveries, turn_id: int | None = None) -> None:
        # Identifies the client's request to the schedulers.
        self.turn_id = new_turn_id() if turn_id is None else turn_id
        self._deliveries = deliveries
        # `_num_unread_bytes`: size of the output that the task has not taken. `_busy_since`: time at which the task was
        # last woken or last took output (monotonic seconds).
        self._num_unread_bytes = 0
        self._busy_since = clock.now()
        self._news: list[SubmittedSequence] = []
        # `_put_at`: arrival time of the oldest output that is not taken. `news_since`: arrival time of the oldest
        # output that the last `take` returned. Both are monotonic seconds.
        self._put_at = 0.0
        self.news_since = 0.0
        # Set while the task waits and has not been woken.
        self._waiter: asyncio.Future[None] | None = None
        self._error: ApiError | None = None

    def put(self, sequence: SubmittedSequence, num_tokens: int = 0, num_candidates: int = 0) -> None:
        """Records that a sequence has new output. `num_tokens`: number of new tokens. `num_candidates`: number of
        candidates in the log probabilities of all these tokens."""
        self._num_unread_bytes += num_tokens * _TOKEN_BYTES + num_candidates * _CANDIDATE_BYTES
        if not sequence.has_news:
            sequence.has_news = True
            if not self._news:
                self._put_at = clock.now()
            self._news.append(sequence)
            self._call()

    def fail(self, error: ApiError) -> None:
        """Fails the whole request with `error`. Only the first error counts: later calls do not replace it."""
        self._error = self._error or error
        self._call()

    async def take(self) -> list[SubmittedSequence]:
        """Waits for and returns sequences with new output, at least one. Raises ApiError if the request has failed and
        all output was taken."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        if self._news or self._error is not None:
            self._call()
        await waiter
        if not self._news:
            assert self._error is not None
            raise self._error
        news, self._news = self._news, []
        self._num_unread_bytes = 0
        self._busy_since = clock.now()
        self.news_since = self._put_at
        for sequence in news:
            sequence.has_news = False
        return news

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    @property
    def is_behind(self) -> bool:
        """Whether the client reads so slowly that its sequences should pause."""
        if self._num_unread_bytes <= MAX_UNREAD_BYTES_OF_IDLE or self._waiter is not None:
            return False
        is_idle = clock.now() - self._busy_since > IDLE_CLIENT_SECONDS
        return is_idle or self._num_unread_bytes > MAX_UNREAD_BYTES

    def _call(self) -> None:
        if self._waiter is not None:
            self._busy_since = clock.now()
            self._deliveries.wake(self._waiter)
            self._waiter = None


class HostingScheduler(RefusingScheduler, Protocol):
    """The interface through which a sequence uses the SchedulerConnection that it runs on."""

    @property
    def address(self) -> str: ...

    def drop(self, sequence: SubmittedSequence, *, abort: bool) -> None:
        """Forgets the sequence. `abort`: also tell the scheduler to end it."""


class SubmittedSequence:
    """One choice of one prompt."""

    __slots__ = (
        "attempt",
        "choice_index",
        "connection",
        "embedding",
        "finish_reason",
        "has_news",
        "is_held",
        "logprobs",
        "num_cached_tokens",
        "num_host_cached_tokens",
        "num_loads_at_submit",
        "num_losses",
        "num_parts_lost",
        "num_preemptions",
        "num_tokens_at_loss",
        "num_tokens_at_submit",
        "num_worker_losses_at_submit",
        "output_token_ids",
        "scheduled_at",
        "sequence_id",
        "stall_moves",
        "submission",
        "submitted_at",
        "suspicion",
        "was_accepted",
    )

    def __init__(self, submission: Submission, choice_index: int) -> None:
        self.submission = submission
        # Selects the random numbers, together with the submission's seed.
        self.choice_index = choice_index
        # All tokens received, from every scheduler so far; a resubmission continues after them.
        self.output_token_ids: list[int] = []
        # Log probabilities of the newest tokens, until the request's task takes them. Empty if not requested.
        self.logprobs = TokenLogprobs()
        self.finish_reason: FinishReason | None = None
        # The vector (float32, little-endian), if the sequence is pooled and has finished.
        self.embedding = b""
        self.num_cached_tokens = 0
        self.num_host_cached_tokens = 0
        self.num_preemptions = 0
        # Number of schedulers and workers that were lost, or sent nothing, while they worked on the sequence.
        self.num_parts_lost = 0
        # `submitted_at`: time of the last submission. `scheduled_at`: time at which a scheduler first planned the
        # sequence; None if none has yet. Both are monotonic seconds.
        self.submitted_at = 0.0
        self.scheduled_at: float | None = None
        # At the last submission: number of load messages that the connection had received.
        self.num_loads_at_submit = 0
        # At the last submission: number of the sequence's output tokens, and Choice.num_worker_losses.
        self.num_tokens_at_submit = 0
        self.num_worker_losses_at_submit = 0
        self.attempt = 0
        # `connection`: the scheduler that runs the sequence; None while the sequence waits for a scheduler, and after
        # its end. `sequence_id`: the sequence's id in that scheduler.
        self.connection: HostingScheduler | None = None
        self.sequence_id = 0
        self.has_news = False
        # Number of schedulers lost in a row without a new token in between.
        self.num_losses = 0
        self.num_tokens_at_loss = -1
        # The moves away from schedulers on which it stood still.
        self.stall_moves = StallMoves()
        # Whether a scheduler has accepted the sequence before. Schedulers take such a sequence even if their queues are
        # full.
        self.was_accepted = False
        self.suspicion = Suspicion()
        # Whether the scheduler keeps the sequence until it knows whether it fails (WorkerLoss.is_held).
        self.is_held = False

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None or self.submission.is_closed

    @property
    def is_just_moved(self) -> bool:
        """Whether an earlier scheduler accepted the sequence and the current one has sent no token of it yet."""
        return self.was_accepted and len(self.output_token_ids) == self.num_tokens_at_submit

    def finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.submission.mailbox.put(self)

    @property
    def num_worker_losses(self) -> int:
        """How much the schedulers suspect this sequence of ending workers (WorkerLoss.num_losses); 0 once it has a new
        token."""
        has_progressed = len(self.output_token_ids) > self.suspicion.num_tokens
        return 0 if has_progressed else self.suspicion.num_losses

    @property
    def has_brought_an_exit(self) -> bool:
        """Whether the current scheduler counts an exit that an earlier one has seen. Only the router knows how that one
        turned out, so `suspicion` stays."""
        has_progressed = len(self.output_token_ids) > self.num_tokens_at_submit
        return not has_progressed and self.num_worker_losses_at_submit >= EXIT_ALONE

    def suspect(self, num_losses: int, *, is_unproved: bool, is_held: bool) -> None:
        """Takes note of a WorkerLoss of the current scheduler."""
        self.is_held = is_held
        if not self.has_brought_an_exit:
            self.suspicion = Suspicion(num_losses, len(self.output_token_ids), is_unproved)

    def count_loss(self) -> int:
        """Counts a lost scheduler. Returns the number of schedulers lost in a row without a new token."""
        self.num_parts_lost += 1
        self.was_accepted = True
        progressed = len(self.output_token_ids) > self.num_tokens_at_loss
        self.num_tokens_at_loss = len(self.output_token_ids)
        self.num_losses = 1 if progressed else self.num_losses + 1
        return self.num_losses

    def may_leave_stall(self, now: float) -> bool:
        """Whether the sequence may leave a scheduler on which it stands still."""
        return self.stall_moves.may_move(now, len(self.output_token_ids))

    def leave_stall(self, now: float) -> None:
        """Takes note that the sequence leaves a scheduler on which it stands still."""
        self.stall_moves.moved(now, len(self.output_token_ids))
        self.num_parts_lost += 1


class Submission:
    """One prompt and its sequences."""

    __slots__ = (
        "affinity",
        "arrival",
        "cache_salt",
        "deadline",
        "is_closed",
        "is_pinned",
        "mailbox",
        "model",
        "num_tokens_at_wait",
        "paused",
        "priority",
        "prompt_logprobs",
        "prompt_token_ids",
        "refusals",
        "request_id",
        "sequences",
        "tenant",
        "traceparent",
        "waits_until",
        "work",
    )

    def __init__(
        self,
        *,
        request_id: str,
        model: ModelInfo,
        prompt_token_ids: Sequence[int],
        work: Work,
        n: int,
        deadline: float | None,
        traceparent: str,
        mailbox: Mailbox,
        cache_salt: str = "",
        priority: int = 0,
        tenant: str = "",
        affinity: bytes = b"",
        is_pinned: bool = True,
    ) -> None:
        """`deadline`: seconds on the event loop's clock. `affinity`: the placement key (see shared/placement.py).
        `is_pinned`: whether no other version of the model may continue the request."""
        # Order of this router's submissions: those that move to another scheduler move in this order.
        self.arrival = next(_arrivals)
        self.request_id = request_id
        self.model = model
        self.prompt_token_ids = prompt_token_ids
        self.work = work
        self.deadline = deadline
        self.traceparent = traceparent
        self.mailbox = mailbox
        self.cache_salt = cache_salt
        self.priority = priority
        self.tenant = tenant
        self.affinity = affinity
        self.is_pinned = is_pinned
        # Log probabilities of the prompt's tokens from the second one on. They arrive with the output of the first
        # choice.
        self.prompt_logprobs = PromptLogprobs()
        self.sequences = [SubmittedSequence(self, index) for index in range(n)]
        self.refusals = Refusals()
        # `waits_until`: time at which the submission stops waiting for a scheduler (event loop's clock). All its waits
        # share this limit. None if it has not waited. `num_tokens_at_wait`: the submission's number of output tokens
        # when `waits_until` was set.
        self.waits_until: float | None = None
        self.num_tokens_at_wait = 0
        self.is_closed = False
        # Sequences that no scheduler runs until the client has read the output so far.
        self.paused: list[SubmittedSequence] = []

    def end_of(self, sequence: SubmittedSequence) -> FinishReason | None:
        """Returns the finish reason if the received tokens end the sequence; None if the sequence continues."""
        return self.work.end_of(sequence.output_token_ids, self.model.eos_token_ids)

    def param_of(self, field: str | None) -> str | None:
        """Returns the client's name for a field that a scheduler refused. `field`: the field's name in Submit; None if
        the scheduler named no field."""
        # A scheduler refuses only fields that the router cannot check completely: the number of choices and the
        # constraints.
        return self.work.param_of_choices(len(self.sequences)) if field == "choices" else self.work.checked_param

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether some of the prompt's log probabilities were requested but have not arrived."""
        return self.work.wants_prompt_logprobs and len(self.prompt_logprobs) < len(self.prompt_token_ids) - 1

    @property
    def num_context_tokens(self) -> int:
        """Number of tokens that a scheduler's context must hold: those of the prompt and of the longest possible
        output."""
        return len(self.prompt_token_ids) + self.work.max_tokens

    @property
    def num_output_tokens(self) -> int:
        return sum(len(sequence.output_token_ids) for sequence in self.sequences)

    def outstanding_tokens(self, sequences: Sequence[SubmittedSequence]) -> int:
        """Returns the maximum number of tokens that a scheduler has to compute for `sequences`, counted as in
        Load.outstanding_tokens."""
        most = self.num_context_tokens
        return sum(most - len(sequence.output_token_ids) for sequence in sequences)
