"""Log probabilities under the model's raw distribution, before penalties and temperature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.plan import GeneratingSequence
from services.worker.sampling.given_tokens import GivenColumns, GivenTokens
from services.worker.sampling.stage import I64
from services.worker.transfers import upload
from shared.sampling_ranges import MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log probabilities on the device. Of a sample's n rows, m rows ask for log probabilities."""

    rows: I64  # [m], on the host: indices of the m rows in the sample
    top_counts: I64  # [m], on the host: number of top tokens to report
    logprobs: Tensor  # float32 [m], of the sampled token
    # The likeliest tokens, or the tokens that the request names.
    top_token_ids: Tensor  # int64 [m, MAX_LOGPROBS], likeliest first, ties by id
    top_logprobs: Tensor  # float32 [m, MAX_LOGPROBS]


@dataclass(frozen=True, slots=True)
class RawDistribution:
    rows: I64
    top_counts: I64
    logprobs: Tensor  # float32 [m, vocab]
    given: GivenTokens | None = None

    def look_up(self, tokens: Tensor) -> LogprobTensors:
        """Returns the log probabilities of the sampled tokens, and of either the likeliest tokens or the tokens that
        the request names. tokens int64 [n]: the sampled tokens, one per row of the sample."""
        drawn = tokens[upload(self.rows, tokens.device)]
        # All requests use the same k, even if they ask for fewer tokens, because topk can choose differently among
        # equal values if k differs.
        top = self.logprobs.topk(min(MAX_LOGPROBS, self.logprobs.shape[1]))
        by_id = top.indices.argsort(-1)
        ids, values = top.indices.gather(1, by_id), top.values.gather(1, by_id)
        order = values.argsort(dim=-1, descending=True, stable=True)
        ids, values = ids.gather(1, order), values.gather(1, order)
        if self.given is not None:
            self.given.write(ids, values)
        of_drawn = self.logprobs.gather(1, drawn[:, None]).squeeze(1)
        return LogprobTensors(self.rows, self.top_counts, of_drawn, ids, values)


class LogprobColumns:
    """Which log probabilities each slot's request asks for: none, those of a number of likeliest tokens, or those of
    tokens that it names."""

    def __init__(self, max_num_seqs: int) -> None:
        self._top_count: NDArray[np.int64] = np.full(max_num_seqs, -1, np.int64)  # -1: no log probabilities
        self._given = GivenColumns(max_num_seqs)

    def admit(self, sequence: GeneratingSequence) -> None:
        logprobs = sequence.sampling.logprobs
        self._top_count[sequence.slot] = -1 if logprobs is None else logprobs
        self._given.admit(sequence)

    def distribution(self, logits: Tensor, slots: I64) -> RawDistribution | None:
        """Returns the log probabilities of all tokens, for the rows that ask for log probabilities; None if no row
        does. The result does not share memory with `logits`, which the sampler overwrites."""
        counts = self._top_count[slots]
        rows = np.flatnonzero(counts >= 0)
        if not len(rows):
            return None
        chosen = logits[torch.from_numpy(rows).to(logits.device)].log_softmax(-1)
        top_counts = self._given.top_counts(slots[rows], np.minimum(counts[rows], logits.shape[1]))
        given = self._given.of(chosen, np.arange(len(rows)), slots[rows])
        return RawDistribution(rows, top_counts, chosen, given)
