"""What the core is asked for: one choice of one request, as it reaches the core."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a worker has to have ready before a sequence may be planned there."""

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
    max_tokens: ClassVar[int] = 0  # of output
    max_results: ClassVar[int] = 1
    stop_token_ids: ClassVar[frozenset[int]] = frozenset()

    @property
    def can_resume(self) -> bool:
        """Whether a sequence whose KV blocks are known, in part, only computes the rest."""
        return not self.needs_all_tokens


# What a sequence is for. Both types answer the same questions, so that nothing else asks which of them it is.
Work = Generate | Pool


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one request. `output_token_ids` is what earlier attempts generated.

    Holds what the core reads. A subclass adds what the core only passes through; every class of the core that holds
    requests is generic over it.
    """

    key: Hashable  # the owner's name for it, unique among unfinished sequences
    prompt_token_ids: array[int]
    work: Work
    output_token_ids: array[int] = field(default_factory=lambda: array("I"))
    was_accepted: bool = False  # by another scheduler, before: no queue is too long for it
    num_losses: int = 0  # workers of other schedulers lost in a row while they computed it, since its last token
    choice_index: int = 0
    turn_id: Hashable = None  # sequences of one client's request have an equal one and share turns; None: it is alone
    group: Hashable = None  # other choices of the same request, whose prompt is this one's, have an equal one
    cache_salt: Hashable = ""  # blocks are shared among sequences with equal ones
    priority: int = 0  # less is sooner
    tenant: str = ""  # among whom fair queueing is fair
    # Entries of the prompt's log probabilities that earlier attempts brought, of len(prompt) - 1; None: not wanted.
    num_prompt_logprobs: int | None = None
    sampling_bytes: int = 0  # what the subclass tells the worker beside tokens, on the wire
    needs: Preparation | None = None
    deadline: float | None = None  # on the clock of `now` in Scheduler's calls

    @property
    def flow(self) -> Hashable:
        """Whose turns it has: its request's, or its own."""
        return self.key if self.turn_id is None else self.turn_id

    @property
    def shares_prompt(self) -> bool:
        """Whether another choice of the same request computes the prompt for it."""
        return self.group is not None and self.choice_index > 0


RequestT = TypeVar("RequestT", bound=SequenceRequest)
