"""The ways to pool. Apart from what reads them: the command line lists them without a model's code."""

from __future__ import annotations

from enum import Enum


class PoolingKind(Enum):
    LAST = "last"  # the last token's hidden state
    MEAN = "mean"  # the mean of all
    CLS = "cls"  # the first token's


CHOICES = ("auto", *(kind.value for kind in PoolingKind))
