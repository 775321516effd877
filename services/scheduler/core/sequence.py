"""One sequence: what is known of it, and how far the plans have taken it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic

from .prefix import Prefix
from .request import Preparation, RequestT
from .turns import FIRST_TURN, Turn

# Priority, the turn's step, arrival.
StartRank = tuple[int, int, int]


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class FinishReason(Enum):
    STOP = auto()
    LENGTH = auto()
    ERROR = auto()


class ErrorKind(Enum):
    """Why a sequence failed, in the terms of google.rpc.Code."""

    INVALID_ARGUMENT = auto()
    RESOURCE_EXHAUSTED = auto()
    DEADLINE_EXCEEDED = auto()
    UNAVAILABLE = auto()
    INTERNAL = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    kind: ErrorKind
    message: str
    retry_after_s: float | None = None
    field: str = ""  # the Submit's field that is wrong; empty if the message names it


class Sequence(Generic[RequestT]):
    """Mutable state of one choice. Changed by the scheduler's core alone.

    `num_computed_tokens` and `num_planned_tokens` are according to the plans sent, not yet confirmed: planned ones are
    those known and those promised, which a plan in flight will sample. The sequence must catch up: its computed tokens
    with its planned ones.
    """

    __slots__ = (
        "_num_losses",
        "_num_tokens_at_loss",
        "arrival",
        "block_ids",
        "host_slots",
        "is_in_reserve",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hit_blocks",
        "num_planned_tokens",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_swapped_tokens",
        "num_tokens_at_start",
        "prefixes",
        "request",
        "slot",
        "status",
        "stop_token_ids",
        "token_ids",
        "turn",
        "waits_for",
        "wire_id",
    )

    def __init__(self, request: RequestT, arrival: int, turn: Turn = FIRST_TURN) -> None:
        self.request = request
        self.arrival = arrival
        self.turn = turn  # while it waits, it changes only with its place in the queue
        self.num_prompt_tokens = len(request.prompt_token_ids)
        # Prompt, then every output token whose result was applied. Choices of one request share the prompt itself
        # until they start: a copy for each would take long where the prompt is long and they are many.
        has_output = bool(request.output_token_ids)
        self.token_ids = request.prompt_token_ids + request.output_token_ids if has_output else request.prompt_token_ids
        # A vector takes the place of the first output token.
        self.max_num_tokens = self.num_prompt_tokens + request.work.max_results
        self.stop_token_ids = request.work.stop_token_ids
        # Entries that have come, the first of the prompt's second token. All of them where none are wanted.
        wanted = request.num_prompt_logprobs
        self.num_prompt_logprobs = self.num_prompt_tokens - 1 if wanted is None else wanted
        self.num_tokens_at_start = 0  # known when it last started to run
        self.num_planned_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        # Block by block: of the full ones that are computed, or are to be from tokens known when it started.
        self.prefixes: list[SequencePrefix[RequestT]] = []
        self.num_hit_blocks = 0  # at the front, found in the cache
        self.num_published_blocks = 0  # at the front, the found ones among them
        self.num_cached_tokens: int | None = None  # that were not computed when it first started
        # Swapped out: where its blocks are, and how many tokens' keys and values stand in them.
        self.host_slots: list[int] = []
        self.num_swapped_tokens = 0
        # What another sequence is computing, or the worker is preparing.
        self.waits_for: SequencePrefix[RequestT] | Preparation | None = None
        self.slot = -1
        self.is_in_reserve = False  # the slot
        self.wire_id = 0  # 0: the worker does not know it
        self.status = Status.WAITING
        self.num_losses = 0

    def own_token_ids(self) -> None:
        """From now on, tokens may be appended to `token_ids`."""
        if self.token_ids is self.request.prompt_token_ids:
            self.token_ids = self.token_ids[:]

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes on first, and who gives way last, of those that run. It never changes."""
        return self.request.priority, self.arrival

    @property
    def start_rank(self) -> StartRank:
        """Who starts first, of those that wait, and whose prompt goes on first."""
        return self.request.priority, self.turn.step, self.arrival

    def __lt__(self, other: Sequence[RequestT]) -> bool:
        return self.rank < other.rank

    @property
    def num_losses(self) -> int:
        """Workers lost in a row while they computed it, without a new token in between."""
        return self._num_losses if len(self.token_ids) == self._num_tokens_at_loss else 0

    @num_losses.setter
    def num_losses(self, num_losses: int) -> None:
        self._num_losses = num_losses
        self._num_tokens_at_loss = len(self.token_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.num_prompt_logprobs < self.num_prompt_tokens - 1

    @property
    def num_reusable_tokens(self) -> int:
        """Tokens, at the front, that need not be computed if their keys and values are there. What the last known token
        says of the next one is not known yet, nor is what prompt tokens say whose log probabilities have not come."""
        return self.num_prompt_logprobs if self.wants_prompt_logprobs else len(self.token_ids) - 1

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_sampled(self) -> bool:
        """Since it started: all tokens known then were computed, by steps that were applied."""
        return len(self.token_ids) > self.num_tokens_at_start

    @property
    def num_bytes(self) -> int:
        """What it takes to tell a worker of it, roughly."""
        return len(self.token_ids) * self.token_ids.itemsize + self.request.sampling_bytes

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the next plan may compute: those planned, but for a last one that nothing follows."""
        if self.num_planned_tokens >= self.max_num_tokens:
            return 0
        return self.num_planned_tokens - self.num_computed_tokens

    @property
    def num_outstanding_tokens(self) -> int:
        """Work left at most: tokens to compute before the next output, and output still allowed."""
        to_compute = max(len(self.token_ids) - self.num_computed_tokens, 0)
        return to_compute + self.max_num_tokens - len(self.token_ids)


# The sequence that computes a prefix owns it meanwhile.
SequencePrefix = Prefix[Sequence[RequestT]]
