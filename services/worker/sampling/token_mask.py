"""Bit masks of allowed tokens, for the constrained rows of a sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.sampling.stage import I64


@dataclass(frozen=True, slots=True)
class TokenMask:
    rows: I64  # [m], on the host: the constrained rows of the sample, each once
    # int32 [m, at least ceil(vocab / 32)], on the device: token t is bit t % 32 of word t // 32, as in xgrammar.
    bits: Tensor

    def apply(self, logits: Tensor) -> None:
        """Sets logits [n, vocab] to -inf, in place, where the token's bit is 0. Changes only the rows `self.rows`."""
        shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = ((self.bits[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]] != 0
        rows = torch.from_numpy(self.rows).to(logits.device)
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)
