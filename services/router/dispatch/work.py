"""The types of work that schedulers do: generate tokens, or pool the prompt into a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from services.router.constraints import TokenConstraints
from services.router.parameters import ClassificationParams, PoolingParams, SamplingParams, StopConditions


class FinishReason(Enum):
    STOP = auto()
    LENGTH = auto()


@dataclass(frozen=True, slots=True)
class Generate:
    """The work of generating tokens. `sampling` contains the model's defaults where the client set nothing.
    `stop.max_tokens` is never None."""

    sampling: SamplingParams
    stop: StopConditions
    constraints: TokenConstraints | None = None

    @property
    def max_tokens(self) -> int:
        assert self.stop.max_tokens is not None
        return self.stop.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return self.sampling.logprobs is not None

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling.prompt_logprobs is not None

    def end_of(self, output: Sequence[int], eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Returns how the output tokens end a sequence. Returns None if the sequence continues."""
        if output and output[-1] in self.stop.end_token_ids(eos_token_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(output) == self.max_tokens else None

    def param_of_choices(self, num_choices: int) -> str:
        """The client's name for the field that sets the number of sequences."""
        return "n" if num_choices > 1 else "prompt"

    @property
    def checked_param(self) -> str | None:
        """The client's name for the field that sets the constraints; None if there are no constraints. The router
        cannot check constraints completely. If a scheduler or worker refuses them, the error names this field."""
        return None if self.constraints is None else self.constraints.param


@dataclass(frozen=True, slots=True)
class Pool:
    """The work of pooling a prompt into a vector, or into a classifier's scores. The scheduler sends them in the
    message that ends the sequence."""

    params: PoolingParams | ClassificationParams
    max_tokens: int = 0
    wants_logprobs: bool = False
    wants_prompt_logprobs: bool = False
    checked_param: str | None = None

    def end_of(self, output: Sequence[int], eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Returns None, because no tokens end a sequence with pooling."""
        return None

    def param_of_choices(self, num_choices: int) -> str:
        """The client's name for the field that sets the number of sequences."""
        return "input"


Work = Generate | Pool
