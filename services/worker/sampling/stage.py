"""Interface of the host sampler's stages. A stage implements one sampling parameter: it transforms the logits of the
rows that use the parameter.

A new parameter needs a new Stage in `host_sampler.py`'s list and a column in the device sampler. Nothing else in the
worker's core handles individual parameters. Every stage computes each row from that row alone, in an order of
operations that does not depend on the batch, so a row's result has the same bits in every batch. Stages use only
elementwise arithmetic with IEEE 754 rounding, order statistics, and torch's softmax and cumsum, which reduce row by row
(the tests check that they do).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.worker.plan import GeneratingSequence

I64 = NDArray[np.int64]


class Stage(Protocol):
    active: NDArray[np.bool_]  # [max_num_seqs], which slots use this stage

    def admit(self, sequence: GeneratingSequence) -> None:
        """Sets all values that the stage keeps for the sequence's slot, including `active`, so that none of the slot's
        previous sequence remains."""
        ...

    def apply(self, logits: Tensor, slots: I64) -> None:
        """Transforms logits [n, vocab] float32 in place; row i belongs to slots[i]."""
        ...
