"""Which tokens a grammar allows, for those rows of a sample that have one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.sampling.stage import I64


@dataclass(frozen=True, slots=True)
class TokenMask:
    rows: I64  # [m], of the sample, on the host; no row twice
    # int32 [m, at least ceil(vocab / 32)], on the device: token t is bit t % 32 of word t // 32, as in xgrammar's.
    bits: Tensor

    def apply(self, logits: Tensor) -> None:
        """-inf, in place, where the bit is 0. logits [n, vocab]."""
        shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = ((self.bits[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]] != 0
        rows = torch.from_numpy(self.rows).to(logits.device)
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)
