"""The two models and how long each is trained: everything that decides what `train` makes, beside the text."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 20250701


@dataclass(frozen=True)
class Recipe:
    """Sizes of one model (see `model.Shape`) and its training."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    steps: int
    rows: int = 24  # rows of one batch
    length: int = 128  # tokens of one row
    long_length: int = 384  # tokens of one row in the last part of the steps, in as many rows as fit the batch
    long_share: float = 0.08  # how long that last part is
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    warmup_steps: int = 60
    decay: float = 0.7  # the last part of the steps, over which the rates fall to nothing


LARGE = Recipe("quire-chat", 128, 5, 4, 2, 512, steps=4500)
DRAFT = Recipe("quire-chat-draft", 128, 2, 4, 2, 256, steps=2000)
