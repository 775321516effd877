"""The core's input: one choice of one request, and the work that the choice asks for."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from services.scheduler.core.content import Content


@dataclass(frozen=True, slots=True)
class Preparation:
    """Something that a worker must have ready before a sequence can run there: a compiled grammar."""

    key: bytes
    source: str = field(default="", compare=False)  # passed on to the worker unread
    # The output of the only sequence that the preparation is for; None: sequences share it.
    output_token_ids: array[int] | None = field(default=None, compare=False)

    @property
    def is_single(self) -> bool:
        """Whether the preparation is for one sequence alone."""
        return self.output_token_ids is not None


@dataclass(frozen=True, slots=True)
class Generate:
    """The work of sampling tokens after the prompt, until a stop token or `max_tokens` ends the sequence."""

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()  # including the model's end tokens, unless the request ignores them

    gives_vector: ClassVar[bool] = False
    can_resume: ClassVar[bool] = True

    @property
    def max_results(self) -> int:
        """Maximum number of sampled tokens."""
        return self.max_tokens


@dataclass(frozen=True, slots=True)
class Pool:
    """The work of making one vector of the prompt. The vector comes with the result of the step that computes the
    prompt's last token.
    """

    # Whether every token must be computed to make the vector: True if the model is an encoder, or if the vector is made
    # of more than the last token's hidden state. Then cached KV blocks, which hold no hidden states, are of no use.
    needs_all_tokens: bool = False

    gives_vector: ClassVar[bool] = True
    max_tokens: ClassVar[int] = 0  # output tokens
    max_results: ClassVar[int] = 1
    stop_token_ids: ClassVar[frozenset[int]] = frozenset()

    @property
    def can_resume(self) -> bool:
        """Whether a sequence can take KV blocks from the cache or the host, and compute only the tokens after them."""
        return not self.needs_all_tokens


# The work that a sequence asks for. `Generate` and `Pool` have the same properties, so that the core need not
# distinguish them.
Work = Generate | Pool


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one request. `output_token_ids`: the tokens that were generated before the router submitted the
    choice again, for example because another scheduler was lost.

    The class holds the fields that the core reads. A subclass adds fields that the core only passes through. Every
    class of the core that holds requests is generic over the subclass.
    """

    key: Hashable  # the caller's name for the sequence, unique among unfinished ones
    prompt_token_ids: array[int]
    work: Work
    output_token_ids: array[int] = field(default_factory=lambda: array("I"))
    # Whether another scheduler accepted the sequence before. If so, a full queue does not refuse the sequence.
    was_accepted: bool = False
    # How much other schedulers suspect the sequence of crashing workers (see `Sequence.suspicion`).
    suspicion: int = 0
    choice_index: int = 0
    # Id of the client's request, the same for all its sequences. `Turns` delays a sequence according to the total work
    # of all sequences with this id. None: only this sequence's work counts.
    turn_id: Hashable = None
    group: Hashable = None  # equal for the choices of one request, which have the same prompt and contents
    cache_salt: Hashable = ""  # only sequences with equal salts share blocks
    # What some prompt tokens stand for, such as images, because the tokens' ids do not say it. The contents are in the
    # order of the prompt and do not overlap. Only tokens with equal contents share blocks. No message has contents yet.
    contents: tuple[Content, ...] = ()
    priority: int = 0  # a sequence with a lower number starts first
    tenant: str = ""  # the client's tenant, for fair queueing
    # Number of prompt log probabilities, of len(prompt) - 1 in all, that the router has already received from earlier
    # attempts; None: log probabilities of the prompt are not wanted.
    num_prompt_logprobs: int | None = None
    sampling_bytes: int = 0  # size in bytes of the subclass's fields that are sent to the worker
    needs: Preparation | None = None
    deadline: float | None = None  # in seconds, on the clock of Scheduler.expire's `now`

    @property
    def flow(self) -> Hashable:
        """The key under which `Turns` counts the sequence's work: `turn_id`, or the sequence's own key."""
        return self.key if self.turn_id is None else self.turn_id

    @property
    def shares_prompt(self) -> bool:
        """Whether the first choice of the same request computes the prompt for this choice, too."""
        return self.group is not None and self.choice_index > 0


RequestT = TypeVar("RequestT", bound=SequenceRequest)
