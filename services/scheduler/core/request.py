"""One choice of one request, as it reaches the core."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar


@dataclass(frozen=True, slots=True)
class Preparation:
    """Something that a worker must have ready before a sequence may be planned there: a compiled grammar."""

    key: bytes
    source: str = field(default="", compare=False)  # passed on to the worker unread


@dataclass(frozen=True, slots=True)
class Generate:
    """Sample tokens after the prompt, until one of them ends the sequence."""

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()  # the model's own end tokens included, unless they are to be ignored

    gives_vector: ClassVar[bool] = False
    can_resume: ClassVar[bool] = True

    @property
    def max_results(self) -> int:
        """Sampled tokens that the sequence may bring."""
        return self.max_tokens


@dataclass(frozen=True, slots=True)
class Pool:
    """Make one vector of the prompt. The vector comes with the step that computes the prompt's last token."""

    # The vector is made of every token, so all of them must be computed: KV blocks do not hold what it needs.
    needs_all_tokens: bool = False

    gives_vector: ClassVar[bool] = True
    max_tokens: ClassVar[int] = 0  # output tokens
    max_results: ClassVar[int] = 1
    stop_token_ids: ClassVar[frozenset[int]] = frozenset()

    @property
    def can_resume(self) -> bool:
        """Whether a sequence whose KV blocks are known, in part, only computes the rest."""
        return not self.needs_all_tokens


# The purpose of a sequence. Both types answer the same questions, so that no code must ask which of them it has.
Work = Generate | Pool


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one request. `output_token_ids` is what earlier attempts generated.

    Holds what the core reads. A subclass adds what the core only passes through; every class of the core that holds
    requests is generic over it.
    """

    key: Hashable  # the caller's name for the sequence, unique among unfinished ones
    prompt_token_ids: array[int]
    work: Work
    output_token_ids: array[int] = field(default_factory=lambda: array("I"))
    was_accepted: bool = False  # by another scheduler before: then a full queue does not refuse it
    num_losses: int = 0  # other schedulers' workers lost in a row while they computed it, since its last token
    choice_index: int = 0
    turn_id: Hashable = None  # equal for sequences of one client's request, which share turns; None: its own turns
    group: Hashable = None  # equal for the choices of one request, which have the same prompt
    cache_salt: Hashable = ""  # only sequences with equal salts share blocks
    priority: int = 0  # the lower starts first
    tenant: str = ""  # fair queueing serves tenants equally
    # Number of the prompt's len(prompt) - 1 log probabilities that earlier attempts brought; None: not wanted.
    num_prompt_logprobs: int | None = None
    sampling_bytes: int = 0  # size on the wire of what the subclass tells the worker beside tokens
    needs: Preparation | None = None
    deadline: float | None = None  # on the clock of `now` in Scheduler's calls

    @property
    def flow(self) -> Hashable:
        """The key of its turns: its request's, or its own."""
        return self.key if self.turn_id is None else self.turn_id

    @property
    def shares_prompt(self) -> bool:
        """Whether another choice of the same request computes the prompt for it."""
        return self.group is not None and self.choice_index > 0


RequestT = TypeVar("RequestT", bound=SequenceRequest)
