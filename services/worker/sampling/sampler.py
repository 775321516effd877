"""Interface of the samplers, which choose the next token of each row.

Randomness is counter-based: a token's noise depends only on the sequence's seed, its choice index and the token's
position. So a sequence that is recomputed on another worker samples the same tokens from the same logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.worker.plan import GeneratingSequence
from services.worker.sampling.logprobs import LogprobTensors
from services.worker.sampling.stage import I64
from services.worker.sampling.token_mask import TokenMask


@dataclass(frozen=True, slots=True)
class Sample:
    """Results of sampling, on the device, with one entry per row of logits."""

    tokens: Tensor  # int64 [n]; 0 where `valid` is False
    valid: Tensor  # bool [n]; False if the logits are not finite or the mask allows no token
    logprobs: LogprobTensors | None

    def tensors(self) -> list[Tensor]:
        """Returns `tokens` and `valid`, and then, unless `logprobs` is None, the tensors of `logprobs` in the order of
        their fields. All are on the device."""
        of = self.logprobs
        return [self.tokens, self.valid, *(() if of is None else (of.logprobs, of.top_token_ids, of.top_logprobs))]


class Sampler(Protocol):
    """Samples tokens. Keeps each slot's sampling parameters and the token counts that penalties need."""

    last_tokens: Tensor  # int64 [max_num_seqs] on the device: the last token sampled for each slot

    def admit(self, sequence: GeneratingSequence) -> None:
        """Assigns the slot `sequence.slot` to the sequence from the next sample on, and clears the state of the slot's
        previous sequence."""
        ...

    def sample(self, logits: Tensor, slots: I64, positions: NDArray[np.int32], mask: TokenMask | None = None) -> Sample:
        """Samples a token from each row of logits [n, vocab], and can overwrite the logits. Row i belongs to slots[i]
        and samples the token at positions[i].

        No slot may occur twice. All memory is allocated before any slot's state changes, so that callers can sample
        again with fewer rows if memory runs out.
        """
        ...
