"""A request under way: its sequences as this router knows them, wherever they run at the moment.

Ownership: the connection's reader appends to a sequence's output, the request's own task takes from it. Both run on
the one event loop, and what has not been taken merges by itself: a slow client costs no more memory than its answer's
tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.refusals import Refusals, RefusingScheduler
from services.router.dispatch.work import FinishReason, Work
from services.router.errors import ApiError
from services.router.logprobs import PromptLogprobs, TokenLogprobs
from services.router.model import ModelInfo

# Of tokens that a client has not taken. More than the first stop the request's sequences at once; more than the second
# stop them when the client has taken nothing for so many seconds (docs/adr/0021-answers-in-pieces.md).
MAX_UNREAD_BYTES = 2**20
MAX_UNREAD_BYTES_OF_IDLE = 4096
IDLE_CLIENT_SECONDS = 1.0
# What the router keeps of a token, and of each of its candidates, roughly.
_TOKEN_BYTES = 64
_CANDIDATE_BYTES = 8

_turn_ids = itertools.count(1)


class Mailbox:
    """Wakes the one task that serves a request when any of its sequences has news."""

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

    def __init__(self, deliveries: Deliveries) -> None:
        # Of the request that is served, for schedulers.
        self.turn_id = next(_turn_ids)
        self._deliveries = deliveries
        # Of the news; and since when the task has been busy with what it took, in seconds, monotonic.
        self._num_unread_bytes = 0
        self._busy_since = time.monotonic()
        self._news: list[Sequence] = []
        # When the oldest of the news came, and of those taken last; seconds, monotonic.
        self._put_at = 0.0
        self.news_since = 0.0
        # Of the task that waits and has not been called yet.
        self._waiter: asyncio.Future[None] | None = None
        self._error: ApiError | None = None

    def put(self, sequence: Sequence, num_tokens: int = 0, num_candidates: int = 0) -> None:
        """`num_tokens`: how many are new of it. `num_candidates`: of all of these."""
        self._num_unread_bytes += num_tokens * _TOKEN_BYTES + num_candidates * _CANDIDATE_BYTES
        if not sequence.has_news:
            sequence.has_news = True
            if not self._news:
                self._put_at = time.monotonic()
            self._news.append(sequence)
            self._call()

    def fail(self, error: ApiError) -> None:
        """The request as a whole has failed; the first error stays."""
        self._error = self._error or error
        self._call()

    async def take(self) -> list[Sequence]:
        """Sequences with news, at least one. Raises ApiError once the request has failed and all news was taken."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        if self._news or self._error is not None:
            self._call()
        await waiter
        if not self._news:
            assert self._error is not None
            raise self._error
        news, self._news = self._news, []
        self._num_unread_bytes = 0
        self._busy_since = time.monotonic()
        self.news_since = self._put_at
        for sequence in news:
            sequence.has_news = False
        return news

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    @property
    def is_behind(self) -> bool:
        """Whether the client reads so slowly that no more should be computed for it until it does."""
        if self._num_unread_bytes <= MAX_UNREAD_BYTES_OF_IDLE or self._waiter is not None:
            return False
        is_idle = time.monotonic() - self._busy_since > IDLE_CLIENT_SECONDS
        return is_idle or self._num_unread_bytes > MAX_UNREAD_BYTES

    def _call(self) -> None:
        if self._waiter is not None:
            self._busy_since = time.monotonic()
            self._deliveries.wake(self._waiter)
            self._waiter = None


class HostingScheduler(RefusingScheduler, Protocol):
    """What a sequence knows of the scheduler that runs it. A SchedulerConnection is one."""

    @property
    def address(self) -> str: ...

    def drop(self, sequence: Sequence, *, abort: bool) -> None:
        """Forgets the sequence. `abort`: whether the scheduler is told to end it."""


class Sequence:
    """One answer to one prompt."""

    __slots__ = (
        "_num_tokens_at_worker_loss",
        "_num_worker_losses",
        "attempt",
        "choice_index",
        "connection",
        "embedding",
        "finish_reason",
        "has_news",
        "logprobs",
        "num_cached_tokens",
        "num_loads_at_submit",
        "num_losses",
        "num_tokens_at_loss",
        "num_tokens_at_submit",
        "output_token_ids",
        "scheduled_at",
        "sequence_id",
        "submission",
        "submitted_at",
        "was_accepted",
    )

    def __init__(self, submission: Submission, choice_index: int) -> None:
        self.submission = submission
        # Keys the randomness, with the submission's seed.
        self.choice_index = choice_index
        # Everything received, by whoever sent it: what a resubmission goes on from.
        self.output_token_ids: list[int] = []
        # Of the last of output_token_ids, where the request asked for them: those that its task has not taken.
        self.logprobs = TokenLogprobs()
        self.finish_reason: FinishReason | None = None
        # float32, little-endian, of a submission with `pooling`, once it has finished.
        self.embedding = b""
        self.num_cached_tokens = 0
        # When it was last submitted to a scheduler, and when a scheduler first planned it; seconds, monotonic.
        self.submitted_at = 0.0
        self.scheduled_at: float | None = None
        # When it was last submitted: how many loads its connection had received, and how many tokens it had itself.
        self.num_loads_at_submit = 0
        self.num_tokens_at_submit = 0
        self.attempt = 0
        # Where it runs now, under which name; None while it waits for a scheduler, and once it is over.
        self.connection: HostingScheduler | None = None
        self.sequence_id = 0
        self.has_news = False
        # How often in a row a scheduler was lost without a new token in between.
        self.num_losses = 0
        self.num_tokens_at_loss = -1
        # Whether it was at a scheduler that was lost or had lost its workers: no queue is too long for it.
        self.was_accepted = False
        self.num_worker_losses = 0

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None or self.submission.is_closed

    @property
    def is_just_moved(self) -> bool:
        """Whether another scheduler accepted it before, and the present one has sent no token of it."""
        return self.was_accepted and len(self.output_token_ids) == self.num_tokens_at_submit

    def finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.submission.mailbox.put(self)

    @property
    def num_worker_losses(self) -> int:
        """Worker groups lost in a row while they computed it, with no new token in between, as its schedulers count."""
        has_progressed = len(self.output_token_ids) > self._num_tokens_at_worker_loss
        return 0 if has_progressed else self._num_worker_losses

    @num_worker_losses.setter
    def num_worker_losses(self, num_losses: int) -> None:
        self._num_worker_losses = num_losses
        self._num_tokens_at_worker_loss = len(self.output_token_ids)

    def count_loss(self) -> int:
        """Counts a lost scheduler; returns how many in a row brought nothing new."""
        self.was_accepted = True
        progressed = len(self.output_token_ids) > self.num_tokens_at_loss
        self.num_tokens_at_loss = len(self.output_token_ids)
        self.num_losses = 1 if progressed else self.num_losses + 1
        return self.num_losses


class Submission:
    """One prompt and its sequences."""

    __slots__ = (
        "affinity",
        "cache_salt",
        "deadline",
        "is_closed",
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
        prompt_token_ids: SequenceOf[int],
        work: Work,
        n: int,
        deadline: float | None,
        traceparent: str,
        mailbox: Mailbox,
        cache_salt: str = "",
        priority: int = 0,
        tenant: str = "",
        affinity: bytes = b"",
    ) -> None:
        """`deadline`: in seconds on the event loop's clock. `affinity`: a key of shared/placement.py."""
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
        # Of the prompt's tokens from the second on, as they come with the first choice.
        self.prompt_logprobs = PromptLogprobs()
        self.sequences = [Sequence(self, index) for index in range(n)]
        self.refusals = Refusals()
        # On the event loop's clock: how long it may wait for a scheduler in all, once it has had to, and how many
        # tokens it had then.
        self.waits_until: float | None = None
        self.num_tokens_at_wait = 0
        self.is_closed = False
        # Sequences that run nowhere until the client reads what there is of them.
        self.paused: list[Sequence] = []

    def end_of(self, sequence: Sequence) -> FinishReason | None:
        """How the tokens received end the sequence. None if it continues."""
        return self.work.end_of(sequence.output_token_ids, self.model.eos_token_ids)

    def param_of(self, field: str | None) -> str | None:
        """The client's name for the field that a scheduler refuses. `field`: of Submit; None: not named."""
        # The router has checked the other fields itself.
        return self.work.param_of_choices(len(self.sequences)) if field == "choices" else self.work.checked_param

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether log probabilities of the prompt are wanted that have not come yet."""
        return self.work.wants_prompt_logprobs and len(self.prompt_logprobs) < len(self.prompt_token_ids) - 1

    @property
    def num_context_tokens(self) -> int:
        """The context that a scheduler must have to take it, as schedulers judge: prompt and longest output."""
        return len(self.prompt_token_ids) + self.work.max_tokens

    @property
    def num_output_tokens(self) -> int:
        return sum(len(sequence.output_token_ids) for sequence in self.sequences)

    def outstanding_tokens(self, sequences: SequenceOf[Sequence]) -> int:
        """Tokens that a scheduler still has to compute for `sequences`, at most, as Load counts them."""
        most = self.num_context_tokens
        return sum(most - len(sequence.output_token_ids) for sequence in sequences)
