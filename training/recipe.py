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
    batch_tokens: int = 3072
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    matrix_decay: float = 0.2  # of the matrices' weights, per unit of their rate
    warmup_steps: int = 60
    decay: float = 0.7  # the last part of the steps, over which the rates fall to nothing

    def row_length(self, step: int) -> int:
        """Tokens of one row at `step`.

        Short rows cost least and teach nearly everything. Long ones, in between, teach to keep what was said
        last apart from what was said long ago: positions no row ever had are as good as noise.
        """
        if step % 40 == 39:
            return 1536
        return 512 if step % 8 == 7 else 128


LARGE = Recipe("quire-chat", 128, 5, 4, 2, 512, steps=9000)
DRAFT = Recipe("quire-chat-draft", 128, 2, 4, 2, 256, steps=2500)
