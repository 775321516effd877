"""Pooling parameters of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.pooling.config import PoolingConfig


@dataclass(frozen=True, slots=True)
class PoolingParams:
    dimensions: int | None = None  # keep only this many values, from the first on; None: all
    normalize: bool | None = None  # whether to scale the kept values to length 1; None: the model's default

    def check(self, size: int, pooling: PoolingConfig) -> str | None:
        """Returns a sentence for the client if the model does not support these parameters, else None. `size`: length
        of the model's vectors."""
        if self.dimensions is None or self.dimensions == size:
            return None
        if not pooling.is_matryoshka:
            return f"dimensions must be {size}: the model was not trained for shorter embeddings."
        allowed = pooling.matryoshka_dimensions
        if (allowed and self.dimensions not in allowed) or not 1 <= self.dimensions <= size:
            return f"dimensions must be {'one of ' + ', '.join(map(str, allowed)) if allowed else f'1 to {size}'}."
        return None


@dataclass(frozen=True, slots=True)
class ClassificationParams:
    """Parameters of one sequence whose result is a classifier's scores."""

    # Index of the first token of a pair's second text; None: the sequence is one text.
    second_text_at: int | None = None
    activates: bool = True  # whether the classifier's activation is applied to its outputs


# Parameters of a sequence that ends with a vector.
VectorParams = PoolingParams | ClassificationParams
