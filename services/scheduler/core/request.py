"""What the core is asked for: one choice of one request, as it reaches the core."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a worker has to have ready before a sequence may be planned there."""

    key: bytes
    source: str = field(default="", compare=False)  # passed on to the worker unread


@dataclass(frozen=True, slots=True)
class Pooling:
    """A sequence's one result is a vector, made when its prompt is computed."""

    # The vector is made of every token: each must be computed in one go, whatever is known of the keys and values.
    needs_all_tokens: bool = False


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one request. `output_token_ids` is what earlier attempts generated.

    Holds what the core reads. A subclass adds what the core only passes through; every class of the core that holds
    requests is generic over it.
    """

    key: Hashable  # the owner's name for it, unique among unfinished sequences
    prompt_token_ids: array[int]
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()  # the model's own end tokens included, unless they are to be ignored
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
    pooling: Pooling | None = None  # `max_tokens` is 0 then

    @property
    def flow(self) -> Hashable:
        """Whose turns it has: its request's, or its own."""
        return self.key if self.turn_id is None else self.turn_id

    @property
    def shares_prompt(self) -> bool:
        """Whether another choice of the same request computes the prompt for it."""
        return self.group is not None and self.choice_index > 0

    @property
    def can_resume(self) -> bool:
        """Whether keys and values computed before, by whomever, are all it takes to go on."""
        return self.pooling is None or not self.pooling.needs_all_tokens


RequestT = TypeVar("RequestT", bound=SequenceRequest)
