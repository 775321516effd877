"""The plan and the result of one step, as plain dataclasses. `worker.proto` defines their form on the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from services.worker.plan.given_embeddings import GivenEmbeddings
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.token_constraints import TokenConstraints
from services.worker.pooling import ClassificationParams, VectorParams

U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]

# Samplers store the number of a choice as int32. Schedulers send much smaller ones.
MAX_CHOICE_INDEX = 2**31 - 1


def _no_ids() -> U32:
    return np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True)
class NewSequence(ABC):
    """Fields that all new sequences share. Subclasses: `GeneratingSequence` and `PoolingSequence`."""

    is_pooled: ClassVar[bool]  # True: the only result is a vector, and no token is sampled

    wire_id: int
    slot: int
    token_ids: U32  # the prompt, then the output so far
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: U32
    traceparent: str = field(default="", kw_only=True)
    request_id: str = field(default="", kw_only=True)  # for logs and traces
    # Key of the grammar that was compiled for this sequence alone; empty: there is none.
    own_grammar_key: bytes = field(default=b"", kw_only=True)
    embeddings: GivenEmbeddings | None = field(default=None, kw_only=True)  # not on the wire yet

    @abstractmethod
    def admit(
        self, generate: Callable[[GeneratingSequence], str | None], pool: Callable[[PoolingSequence], str | None]
    ) -> str | None:
        """Calls `generate` or `pool`, whichever fits the class, and returns its result: a sentence for the client that
        says why the sequence cannot run, or None."""

    @abstractmethod
    def check(self, vocab_size: int) -> str | None:
        """Returns a sentence for the client about the first value that is out of range, or None."""

    @abstractmethod
    def rules(self) -> tuple[tuple[bool, str], ...]:
        """Returns the rules that sequences of the class must follow, as pairs: whether this sequence follows the rule,
        and what the error says if it does not."""

    @property
    def output_token_ids(self) -> U32:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def grammar(self) -> str:
        """Grammar that the output must follow; empty if there is none."""
        return ""

    @property
    def prompt_logprobs(self) -> tuple[range, int]:
        """Positions of the prompt tokens whose log probabilities are wanted, and the number of likeliest tokens to
        report for each position."""
        return range(0), 0

    @property
    def second_text_at(self) -> int:
        """Index of the first token of a pair's second text; the number of tokens if there is no second text."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class GeneratingSequence(NewSequence):
    """A sequence that generates text. Each step that computes the sequence's last token samples its next token."""

    is_pooled = False

    sampling: SamplingParams
    choice_index: int
    constraints: TokenConstraints | None = None
    # Position of the first prompt token whose log probability is wanted; None: no log probability is wanted.
    prompt_logprobs_from: int | None = None

    @property
    def grammar(self) -> str:
        """See `NewSequence`."""
        return "" if self.constraints is None else self.constraints.grammar

    def admit(
        self, generate: Callable[[GeneratingSequence], str | None], pool: Callable[[PoolingSequence], str | None]
    ) -> str | None:
        """See `NewSequence`."""
        return generate(self)

    def check(self, vocab_size: int) -> str | None:
        """See `NewSequence`."""
        if self.choice_index > MAX_CHOICE_INDEX:
            return f"choice_index must be at most {MAX_CHOICE_INDEX}, but is {self.choice_index}."
        return self.sampling.check(vocab_size)

    def rules(self) -> tuple[tuple[bool, str], ...]:
        """See `NewSequence`."""
        first = self.prompt_logprobs_from
        return ((first is None or first > self.num_computed_tokens, "wants log probabilities of computed tokens"),)

    @property
    def prompt_logprobs(self) -> tuple[range, int]:
        """See `NewSequence`."""
        first, count = self.prompt_logprobs_from, self.sampling.prompt_logprobs
        if first is None or count is None:
            return range(0), 0
        return range(first, self.num_prompt_tokens), count


@dataclass(frozen=True, slots=True)
class PoolingSequence(NewSequence):
    """A sequence whose hidden states are pooled into one vector once its last token is computed."""

    is_pooled = True

    pooling: VectorParams

    def admit(
        self, generate: Callable[[GeneratingSequence], str | None], pool: Callable[[PoolingSequence], str | None]
    ) -> str | None:
        """See `NewSequence`."""
        return pool(self)

    def check(self, vocab_size: int) -> str | None:
        """See `NewSequence`. Always returns None here. The pooler checks the values instead, because their range
        depends on the model's vector size."""
        return None

    def rules(self) -> tuple[tuple[bool, str], ...]:
        """See `NewSequence`."""
        return (
            (len(self.token_ids) == self.num_prompt_tokens, "asks for pooling, but has output tokens"),
            (self.second_text_at <= len(self.token_ids), "has a second text that begins after its last token"),
        )

    @property
    def second_text_at(self) -> int:
        """See `NewSequence`."""
        given = self.pooling.second_text_at if isinstance(self.pooling, ClassificationParams) else None
        return len(self.token_ids) if given is None else given


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the batch, one array per field."""

    wire_ids: U32  # [num_rows]
    slots: U32  # [num_rows]
    num_scheduled_tokens: U32  # [num_rows]
    num_computed_tokens: U32  # [num_rows]
    new_block_offsets: U32  # [num_rows + 1]
    new_block_ids: U32  # [new_block_offsets[-1]]

    def __len__(self) -> int:
        return len(self.wire_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    epoch: int
    step_id: int
    released_wire_ids: U32
    new_sequences: tuple[NewSequence, ...]
    rows: Rows
    copy_sources: U32 = field(default_factory=_no_ids)  # [num_copies], block ids
    copy_destinations: U32 = field(default_factory=_no_ids)  # [num_copies]
    swap_out_blocks: U32 = field(default_factory=_no_ids)  # [n]
    swap_out_slots: U32 = field(default_factory=_no_ids)  # [n], slots in host memory
    swap_in_slots: U32 = field(default_factory=_no_ids)  # [m], slots in host memory
    swap_in_blocks: U32 = field(default_factory=_no_ids)  # [m]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities of those sampled tokens whose sequences asked for them, under the model's distribution before
    penalties and temperature."""

    token_indices: U32  # [n], into `StepResult.token_ids`, ascending
    logprobs: F32  # [n]
    top_counts: U32  # [n]
    top_token_ids: U32  # [sum of top_counts], likeliest first
    top_logprobs: F32  # [sum of top_counts]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of prompt tokens of n sequences, under the model's distribution before penalties and
    temperature. One entry per prompt token."""

    wire_ids: U32  # [n]
    first_positions: U32  # [n], position in the prompt of each sequence's first entry
    offsets: U32  # [n + 1], into the entries
    logprobs: F32  # [offsets[n]]
    ranks: U32  # [offsets[n]], from 1
    top_counts: U32  # [n], number of likeliest tokens reported with each entry of the sequence
    top_token_ids: U32  # entry by entry, likeliest first
    top_logprobs: F32


@dataclass(frozen=True, slots=True)
class SequenceError:
    """Why a sequence failed. Other sequences are not affected."""

    wire_id: int
    message: str  # a sentence for the client
    # True if the request itself is invalid, so that no worker could serve it.
    is_request_at_fault: bool = False
    # True if the sequence can go on once its grammar has been compiled for it alone.
    needs_own_grammar: bool = False


@dataclass(frozen=True, slots=True)
class PooledSequence:
    wire_id: int
    embedding: F32


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Times of one step in seconds, measured by the device's clock."""

    # From the end of the epoch's previous step that ran the model until this step's first kernel; 0 if this is the
    # epoch's first step that runs the model.
    idle: float
    busy: float  # from this step's first kernel until its results were copied


@dataclass(frozen=True, slots=True)
class StepResult:
    step_id: int
    wire_ids: U32  # [n], of the rows that sampled, in the plan's order
    token_ids: U32  # [n]
    logprobs: Logprobs | None
    errors: tuple[SequenceError, ...]
    num_scheduled_tokens: int
    queue_us: int
    run_us: int
    prompt_logprobs: PromptLogprobs | None = None
    pooled: tuple[PooledSequence, ...] = ()
    device: DeviceTime | None = None  # None: the device was not timed
