"""How much of a step can be spent on prompts, after its decodes."""

from __future__ import annotations

import math

from services.scheduler.core.config import CoreConfig
from services.scheduler.core.pacing import StepTimes
from services.scheduler.core.request import RequestT
from services.scheduler.core.sequence import Sequence

# Maximum number, per step, of prompt tokens whose log probabilities are wanted. The limit keeps the step's result under
# half a megabyte (172 bytes per token, with the 20 likeliest candidates), and bounds the output layer's work.
_MAX_PROMPT_LOGPROBS = 2048
# A step of prompts alone can take as long as this number of steps without prompts, even if it misses the target time.
# Smaller chunks would be inefficient, because every step reads all the weights.
_SHORT_STEPS = 8


class StepBudget:
    """Budget of a step for prompts: number of tokens, number of tokens whose log probabilities are wanted, and seconds.

    A step with prompts and decodes takes no longer than the target time between tokens, or than twice the time of its
    decodes alone, whichever is longer. A step of prompts alone takes no longer than the target time between tokens, or
    than _SHORT_STEPS steps without prompts, whichever is longer. A step of prompts alone is limited, too, because
    requests that arrive during the step must wait for its end.
    """

    def __init__(self, config: CoreConfig, step_times: StepTimes, num_decodes: int, num_pairs: float) -> None:
        self.tokens = config.max_num_batched_tokens - num_decodes
        self._prompt_logprobs = _MAX_PROMPT_LOGPROBS
        self._step_times = step_times
        self._seconds = math.inf
        if config.target_tbt_s is None or not step_times.is_known:
            return
        self.tokens = min(self.tokens, max(0, step_times.trusted_tokens - num_decodes))
        if num_decodes:
            least = step_times.decode_seconds(num_decodes, num_pairs)
        else:
            least = (_SHORT_STEPS - 1) * step_times.short_step_seconds
        self._seconds = max(config.target_tbt_s - step_times.seconds(num_decodes, num_pairs), least)

    def max_chunk(self, sequence: Sequence[RequestT]) -> int:
        """Number of the sequence's next tokens that the step has room for."""
        num_tokens = self._max_tokens(sequence.num_computed_tokens, sequence.wants_prompt_logprobs)
        return min(num_tokens, self._prompt_logprobs) if sequence.wants_prompt_logprobs else num_tokens

    def take(self, sequence: Sequence[RequestT], num_tokens: int) -> None:
        """Takes a sequence's next tokens out of the budget. Call it before these tokens count as computed."""
        self.tokens -= num_tokens
        if sequence.wants_prompt_logprobs:
            self._prompt_logprobs -= num_tokens
        if self._seconds != math.inf:
            self._seconds -= self._step_times.chunk_seconds(
                sequence.num_computed_tokens, num_tokens, with_logprobs=sequence.wants_prompt_logprobs
            )

    def _max_tokens(self, position: int, with_logprobs: bool) -> int:
        """Number of tokens from `position` on that the step has room for: at least one while time is left, so that
        every prompt advances.
        """
        if self._seconds == math.inf:
            return self.tokens
        if self._seconds <= 0:
            return 0
        longest = self._step_times.max_chunk(position, self._seconds, with_logprobs=with_logprobs)
        return min(self.tokens, max(1, longest))
