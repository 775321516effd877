"""One choice of one request, as it reaches the core."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar


@dataclass(frozen=True, slots=True)
class Preparation:
    """Something that a worker must have ready before a sequence can run there: a compiled grammar."""

    key: bytes
    source: str = field(default="", compare=False)  # passed on to the worker unread


@dataclass(frozen=True, slots=True)
class Generate:
    """The work of sampling tokens after the prompt, until a token ends the sequence."""

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()  # the model's own end tokens included, unless they are to be ignored

    gives_vector: ClassVar[bool] = False
    can_resume: ClassVar[bool] = True

    @property
    def max_results(self) -> int:
        """Maximum number of sampled tokens."""
        return self.max_tokens


@dataclass(frozen=True, slots=True)
class Pool:
    """The work of making one vector of the prompt. The vector comes with the step that computes the prompt's last
    token.
    """

    # Whether every token must be computed to make the vector. Then known KV blocks are of no use, because they do not
    # hold what the vector is made of.
    needs_all_tokens: bool = False

    gives_vector: ClassVar[bool] = True
    max_tokens: ClassVar[int] = 0  # output tokens
    max_results: ClassVar[int] = 1
    stop_token_ids: ClassVar[frozenset[int]] = frozenset()

    @property
    def can_resume(self) -> bool:
        """Whether a sequence with known KV blocks computes only the tokens after them."""
        return not self.needs_all_tokens


# The purpose of a sequence. Both types have the same properties, so that the code need not tell them apart.
Work = Generate | Pool


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One choice of one request. `output_token_ids`: the tokens that earlier attempts generated.

    The class holds the fields that the core reads. A subclass adds fields that the core only passes through. Every
    class of the core that holds requests is generic over the subclass.
    """

    key: Hashable  # the caller's name for the sequence, unique among unfinished ones
    prompt_token_ids: array[int]
    work: Work
    output_token_ids: array[int] = field(default_factory=lambda: array("I"))
    was_accepted: bool = False  # another scheduler accepted it before, so a full queue does not refuse it
    num_losses: int = 0  # other schedulers' workers lost in a row while computing it, since its last token
    choice_index: int = 0
    turn_id: Hashable = None  # equal for sequences of one client's request, which share turns; None: has its own
    group: Hashable = None  # equal for the choices of one request, which have the same prompt
    cache_salt: Hashable = ""  # only sequences with equal salts share blocks
    priority: int = 0  # the lower starts first
    tenant: str = ""  # fair queueing serves tenants equally
    # Number of prompt log probabilities, out of len(prompt) - 1, that earlier attempts brought; None: not wanted.
    num_prompt_logprobs: int | None = None
    sampling_bytes: int = 0  # size on the wire of the subclass's fields for the worker
    needs: Preparation | None = None
    deadline: float | None = None  # on the clock of `now` in Scheduler's calls

    @property
    def flow(self) -> Hashable:
        """The key under which its turns are counted: its request's `turn_id`, or its own key."""
        return self.key if self.turn_id is None else self.turn_id

    @property
    def shares_prompt(self) -> bool:
        """Whether another choice of the same request computes the prompt for it."""
        return self.group is not None and self.choice_index > 0


RequestT = TypeVar("RequestT", bound=SequenceRequest)
