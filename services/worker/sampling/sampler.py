"""What draws the next token of each row, on any device.

Randomness is counter-based: the noise of a token depends on the sequence's seed, its choice index and the position it
is drawn for, and nothing else, so a sequence that is computed again elsewhere draws the same from the same logits.
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
    """On the device, in the order of the rows given."""

    tokens: Tensor  # int64 [n]; 0 where the logits were no numbers
    valid: Tensor  # bool [n]
    logprobs: LogprobTensors | None

    def tensors(self) -> list[Tensor]:
        """All of them: tokens, valid, and those of the log probabilities in the order of their class."""
        of = self.logprobs
        return [self.tokens, self.valid, *(() if of is None else (of.logprobs, of.top_token_ids, of.top_logprobs))]


class Sampler(Protocol):
    """Keeps each slot's sampling parameters and the counts that penalties need."""

    last_tokens: Tensor  # int64 [max_num_seqs] on the device: what each slot drew last

    def admit(self, sequence: GeneratingSequence) -> None:
        """The slot is the sequence's from the next sample on; nothing of a former owner's stays."""
        ...

    def sample(self, logits: Tensor, slots: I64, positions: NDArray[np.int32], mask: TokenMask | None = None) -> Sample:
        """logits [n, vocab], which may be overwritten; row i belongs to slots[i] and draws the token at positions[i].

        No slot may occur twice. Memory that does not suffice is found out before any slot's state has changed, so that
        a sample may be repeated with fewer rows.
        """
        ...
