"""One sequence: its known tokens, and how many of its tokens the plans so far compute."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic

from services.scheduler.core.prefix import Prefix
from services.scheduler.core.request import Preparation, RequestT
from services.scheduler.core.turns import FIRST_TURN, Turn

# How much a sequence is suspected of crashing workers (losses.py). 0: not at all; 1: a worker that computed it beside
# others has exited. SUSPECT: two in a row have, so it must run alone. EXIT_ALONE: one has that computed it alone.
SUSPECT = 2
EXIT_ALONE = 3

# A sequence that starts with more tokens of output needs a preparation for itself alone.
_LONG_OUTPUT = 1024

# (priority, the turn's step, arrival)
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
    field: str = ""  # name of the invalid field of Submit; empty if none is invalid or if `message` names it
    is_blamed: bool = False  # whether the sequence fails because workers exited


class Sequence(Generic[RequestT]):
    """Mutable state of one choice. Only the scheduler's core changes it.

    `num_computed_tokens` and `num_planned_tokens` count as if the plans in flight had already run. Planned tokens are
    the known ones and the promised ones, which a plan in flight will sample. A later plan must compute the planned
    tokens that are not computed yet.
    """

    __slots__ = (
        "_num_tokens_to_clear",
        "_suspicion",
        "arrival",
        "block_ids",
        "has_outgrown",
        "has_started",
        "host_slots",
        "is_in_reserve",
        "max_num_tokens",
        "needs",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hit_blocks",
        "num_host_cached_tokens",
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
        self.arrival = arrival  # unique among the sequences of all schedulers
        self.turn = turn  # must not change while the sequence is in the queue, which is sorted by it
        self.num_prompt_tokens = len(request.prompt_token_ids)
        # The prompt, then every output token whose result was applied. Choices of one request share the prompt's array
        # until they start, because it takes long to copy a long prompt for many choices.
        has_output = bool(request.output_token_ids)
        self.token_ids = request.prompt_token_ids + request.output_token_ids if has_output else request.prompt_token_ids
        # For a sequence that is pooled, the vector counts as one output token.
        self.max_num_tokens = self.num_prompt_tokens + request.work.max_results
        self.stop_token_ids = request.work.stop_token_ids
        # Number of prompt log probabilities received so far; the first belongs to the prompt's second token. If none
        # are wanted, all count as received.
        wanted = request.num_prompt_logprobs
        self.num_prompt_logprobs = self.num_prompt_tokens - 1 if wanted is None else wanted
        self.num_tokens_at_start = 0  # number of known tokens when the sequence last started to run
        self.num_planned_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        # One prefix for each full block of the tokens known at the start, and for each later block that was published.
        self.prefixes: list[SequencePrefix[RequestT]] = []
        self.num_hit_blocks = 0  # leading blocks that were found in the cache
        self.num_published_blocks = 0  # leading blocks that other sequences can find, including the hit blocks
        self.num_cached_tokens: int | None = None  # prompt tokens found in the cache at the first start
        self.num_host_cached_tokens = 0  # among them, those that were in host memory
        # While the sequence is swapped out: the host slots of its blocks, and the number of tokens in them.
        self.host_slots: list[int] = []
        self.num_swapped_tokens = 0
        # What the worker must prepare before the sequence can start: what others need, too, or something for it alone.
        self.needs = request.needs
        # What the sequence waits for while it is set aside: a prefix that another sequence computes, or a preparation
        # that the worker makes.
        self.waits_for: SequencePrefix[RequestT] | Preparation | None = None
        self.slot = -1
        self.is_in_reserve = False  # whether its slot is one of those reserved for the first sequences of requests
        self.wire_id = 0  # 0: the worker does not know the sequence
        self.status = Status.WAITING
        self.has_started = has_output  # whether it has ever run, here or in another scheduler
        self.has_outgrown = False  # whether it needs a preparation for itself, because the shared one is used up
        self._suspicion = 0
        self._num_tokens_to_clear = 0

    def choose_needs(self) -> None:
        """Chooses what the worker must prepare before the sequence can start with its output so far. A long output
        would take long to read when the sequence starts, and use up what others share."""
        shared = self.request.needs
        if shared is None or not (self.has_outgrown or self.num_output_tokens > _LONG_OUTPUT):
            return
        output = self.token_ids[self.num_prompt_tokens :]
        self.needs = Preparation(b"%b/%d/%d" % (shared.key, self.arrival, len(output)), shared.source, output)

    def own_token_ids(self) -> None:
        """Stops sharing the prompt's array, so that tokens can be appended to `token_ids`."""
        if self.token_ids is self.request.prompt_token_ids:
            self.token_ids = self.token_ids[:]

    @property
    def rank(self) -> tuple[int, int]:
        """Order among running sequences: the lowest rank continues first and is preempted last. The rank never
        changes."""
        return self.request.priority, self.arrival

    @property
    def start_rank(self) -> StartRank:
        """Order among waiting sequences and partly computed prompts. The one with the lowest rank starts or continues
        first."""
        return self.request.priority, self.turn.step, self.arrival

    def __lt__(self, other: Sequence[RequestT]) -> bool:
        return self.rank < other.rank

    @property
    def suspicion(self) -> int:
        return self._suspicion if len(self.token_ids) < self._num_tokens_to_clear else 0

    @property
    def is_suspect(self) -> bool:
        return self.suspicion >= SUSPECT

    def accuse(self, suspicion: int) -> None:
        """Sets the suspicion, until the tokens are known that the plans so far compute, at least one."""
        self._suspicion = suspicion
        self._num_tokens_to_clear = max(len(self.token_ids) + 1, self.num_planned_tokens)

    def accuse_as(self, other: Sequence[RequestT]) -> None:
        """Takes over the suspicion of the same sequence in another scheduler."""
        self._suspicion, self._num_tokens_to_clear = other._suspicion, other._num_tokens_to_clear

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.num_prompt_logprobs < self.num_prompt_tokens - 1

    @property
    def num_reusable_tokens(self) -> int:
        """Number of tokens at the front that need not be computed if their KV blocks are in the cache or on the host.
        The last known token must be computed, because it predicts the next token. Prompt tokens whose log probabilities
        are missing must be computed, too."""
        return self.num_prompt_logprobs if self.wants_prompt_logprobs else len(self.token_ids) - 1

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_sampled(self) -> bool:
        """Whether a result has brought a token of the sequence since the sequence last started. If so, all tokens known
        at that start have been computed."""
        return len(self.token_ids) > self.num_tokens_at_start

    @property
    def num_bytes(self) -> int:
        """Approximate size in bytes of the message that describes the sequence to a worker."""
        return len(self.token_ids) * self.token_ids.itemsize + self.request.sampling_bytes

    @property
    def num_uncomputed_tokens(self) -> int:
        """Number of known and promised tokens that a later plan must compute. 0 once the sequence's last token is known
        or promised, because the last token need not be computed."""
        if self.num_planned_tokens >= self.max_num_tokens:
            return 0
        return self.num_planned_tokens - self.num_computed_tokens

    @property
    def num_outstanding_tokens(self) -> int:
        """Upper bound of the work left, in tokens: known tokens that are not computed yet, and output still allowed."""
        to_compute = max(len(self.token_ids) - self.num_computed_tokens, 0)
        return to_compute + self.max_num_tokens - len(self.token_ids)


# A sequence owns a prefix while it computes or loads that prefix.
SequencePrefix = Prefix[Sequence[RequestT]]
