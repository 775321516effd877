"""Tokens that a request names in `logprob_token_ids`. Their log probabilities are reported instead of those of the
likeliest tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.plan import GeneratingSequence
from services.worker.sampling.stage import I64
from services.worker.transfers import upload
from shared.sampling_ranges import MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class GivenTokens:
    """The tokens that requests name in `logprob_token_ids`, on the device. Of the m rows that ask for log
    probabilities, g rows name tokens."""

    rows: Tensor  # int64 [g], indices into the m rows
    token_ids: Tensor  # int64 [g, width], sorted by value, descending, ties by id; then padding
    values: Tensor  # float32 [g, width], logits or log probabilities; -inf for padding
    own_normalizers: Tensor  # float32 [g, 2], scratch memory of `normalize`

    def normalize(self, normalizers: Tensor) -> None:
        """Turns logits in `values` into log probabilities, in place and without allocating memory. normalizers
        float32 [at least m, 2]: two numbers per row, which are subtracted from the row's logits one after the other."""
        torch.index_select(normalizers, 0, self.rows, out=self.own_normalizers)
        self.values.sub_(self.own_normalizers[:, :1]).sub_(self.own_normalizers[:, 1:])

    def write(self, top_token_ids: Tensor, top_logprobs: Tensor) -> None:
        """Writes token ids and log probabilities into two tensors [m, width], at the rows `self.rows`. Allocates no
        memory."""
        top_token_ids.index_copy_(0, self.rows, self.token_ids)
        top_logprobs.index_copy_(0, self.rows, self.values)


class GivenColumns:
    """Named tokens of all slots, on the host."""

    def __init__(self, max_num_seqs: int) -> None:
        self._ids: NDArray[np.int64] = np.full((max_num_seqs, MAX_LOGPROBS), -1, np.int64)  # ascending, then -1
        self._counts: NDArray[np.int64] = np.zeros(max_num_seqs, np.int64)

    def admit(self, sequence: GeneratingSequence) -> None:
        ids = sorted(sequence.sampling.logprob_token_ids)
        self._ids[sequence.slot] = -1
        self._ids[sequence.slot, : len(ids)] = ids
        self._counts[sequence.slot] = len(ids)

    def top_counts(self, slots: I64, top_counts: I64) -> I64:
        """Returns how many tokens to report for each slot: the number of tokens in its request's `logprob_token_ids`,
        or the slot's entry of `top_counts` if there are none."""
        given = self._counts[slots]
        return np.where(given > 0, given, top_counts)

    def of(self, values: Tensor, rows: I64, slots: I64) -> GivenTokens | None:
        """Returns the tokens that the requests of `slots` name in `logprob_token_ids`, with their values, sorted by
        value; None if no request names tokens. values [n, vocab]: logits or log probabilities; row rows[i] belongs to
        slots[i]."""
        given = np.flatnonzero(self._counts[slots])
        if not len(given):
            return None
        width = min(MAX_LOGPROBS, values.shape[1])
        ids = upload(np.ascontiguousarray(self._ids[slots[given], :width]), values.device)
        at = upload(rows[given], values.device)
        found = values[at[:, None], ids.clamp(min=0)].float().masked_fill(ids < 0, -torch.inf)
        order = found.argsort(dim=1, descending=True, stable=True)
        ordered = found.gather(1, order)
        return GivenTokens(
            upload(given, values.device), ids.gather(1, order), ordered, ordered.new_empty(len(given), 2)
        )
