"""Tokens that come as embeddings, such as the parts of an image."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GivenEmbeddings:
    """Embeddings that some tokens of a sequence, or of a batch, have in place of those of their ids."""

    at: NDArray[np.int64]  # [n], ascending: positions in the sequence, or indices into the batch's tokens
    rows: NDArray[np.float32]  # [n, size of the model's embeddings]; see `InputEmbeddings`

    def fit(self, num_tokens: int) -> bool:
        """Returns whether these are embeddings of tokens of a sequence with `num_tokens` tokens."""
        ascending = bool((np.diff(self.at, prepend=-1, append=num_tokens) > 0).all())
        return self.rows.ndim == 2 and len(self.rows) == len(self.at) and ascending

    def chunk(self, start: int, num_tokens: int, first: int) -> GivenEmbeddings:
        """Returns the embeddings of a sequence's tokens `start`, ..., `start + num_tokens - 1`, which have the indices
        `first`, `first + 1`, ... in a batch."""
        low, high = np.searchsorted(self.at, (start, start + num_tokens)).tolist()
        return GivenEmbeddings(self.at[low:high] + (first - start), self.rows[low:high])


def join(parts: Iterable[GivenEmbeddings]) -> GivenEmbeddings | None:
    """Returns the embeddings of a whole batch; None if there are none. `parts`: those of each row."""
    given = [part for part in parts if len(part.at)]
    if not given:
        return None
    return GivenEmbeddings(np.concatenate([part.at for part in given]), np.concatenate([part.rows for part in given]))
