"""What tests ask of a model runner, and what happened on the way. See `driver.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.worker.plan.given_embeddings import GivenEmbeddings
from services.worker.plan.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that another sequence computed, and that stay in its blocks. The last block can be partial."""

    blocks: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Interruption:
    """A preemption as soon as the sequence has computed `num_tokens`. See `driver.Driver`."""

    num_tokens: int
    swap: bool


@dataclass(frozen=True, slots=True)
class Swapped:
    """Where a preempted sequence's blocks are in host memory."""

    slots: list[int]
    blocks: list[int]  # where they came from
    num_tokens: int


@dataclass(slots=True)
class Events:
    """Counts of what a driver has done, so that a test can check that all of it happened."""

    mixed_steps: int = 0  # steps with a part of a prompt beside the next token of another sequence
    chunks: int = 0  # parts of prompts that are not the last part
    scattered_blocks: int = 0  # blocks that do not follow the sequence's block before them
    recomputed_tokens: int = 0  # tokens that a preempted sequence had computed, and must compute again
    swapped_blocks: int = 0  # blocks that came back from the host to another place
    hit_tokens: int = 0  # tokens of a prefix that a sequence found computed
    copied_blocks: int = 0  # partial blocks of a prefix

    def missing(self) -> list[str]:
        """Returns the names of what has not happened."""
        return [name for name in self.__dataclass_fields__ if not getattr(self, name)]


@dataclass(slots=True)
class Request:
    prompt: list[int]
    num_outputs: int
    sampling: SamplingParams = GREEDY
    choice_index: int = 0
    embeddings: GivenEmbeddings | None = None
    prefix: Prefix | None = None  # whole blocks are shared, a partial one is copied
    interruptions: list[Interruption] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)
    error: str | None = None
    num_preemptions: int = 0
    swapped: Swapped | None = None
