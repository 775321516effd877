"""A sampling parameter, as a transformation of the logits of those rows that use it.

A new parameter is a new Stage in `host_sampler.py`'s list, and a column of the device's sampler: nothing else in the
worker's core knows of single parameters. Every stage computes each row from that row alone, in an order of operations
that does not depend on the others, so that a row's result has the same bits in every batch: elementwise arithmetic that
IEEE 754 rounds in one way, order statistics, and torch's softmax and cumsum, which reduce row by row (the tests check
that they do).
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
        """Sets the columns of the sequence's slot, `active` included; whatever a former owner left there is gone."""
        ...

    def apply(self, logits: Tensor, slots: I64) -> None:
        """Transforms logits [n, vocab] float32 in place; row i is that of slots[i]."""
        ...
