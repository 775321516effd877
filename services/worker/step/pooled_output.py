"""What a model makes of a pooled hidden state: an embedding, or a classifier's scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops import Ops
from services.worker.plan import F32, I64
from services.worker.pooling import ClassificationParams, PoolingConfig, PoolingParams, ScoreActivation, VectorParams
from services.worker.transfers import upload


class PooledOutput(Protocol):
    """See the module's docstring."""

    def check(self, params: VectorParams) -> str | None:
        """Returns a sentence for the client if the model does not support these parameters, else None. Every model
        supports `PoolingParams()`, which asks for the model's defaults."""
        ...

    def compute(self, vectors: Tensor, counts: I64) -> Tensor:
        """Returns what goes to the host, float32 [n, size], on the device. `vectors` float32 [n, hidden]: each the sum
        of `counts` hidden states."""
        ...

    def finish(self, vector: F32, count: int, params: VectorParams) -> F32:
        """Returns one sequence's result. `vector` float32 [size]: its row of `compute`. Computes in float64 and for
        each sequence alone, so that the result does not depend on other sequences."""
        ...


class EmbeddingOutput:
    """See `PooledOutput`."""

    def __init__(self, config: PoolingConfig, hidden_size: int) -> None:
        self._config, self._size = config, hidden_size

    def check(self, params: VectorParams) -> str | None:
        """See `PooledOutput`."""
        if isinstance(params, ClassificationParams):
            return "The model is not a classifier."
        return params.check(self._size, self._config)

    def compute(self, vectors: Tensor, counts: I64) -> Tensor:
        """See `PooledOutput`."""
        return vectors

    def finish(self, vector: F32, count: int, params: VectorParams) -> F32:
        """See `PooledOutput`."""
        assert isinstance(params, PoolingParams)
        wide = vector.astype(np.float64) / count
        if params.dimensions is not None:
            wide = wide[: params.dimensions]
        if self._config.normalize if params.normalize is None else params.normalize:
            # As in torch's `normalize`, the zero vector stays zero.
            wide = wide / max(float(np.sqrt(np.add.reduce(wide * wide))), 1e-12)
        return wide.astype(np.float32)


class ScoreOutput:
    """See `PooledOutput`."""

    def __init__(
        self, classifier: Callable[[Tensor], Tensor], num_labels: int, activation: ScoreActivation, ops: Ops
    ) -> None:
        """`classifier`: from pooled hidden states [n, hidden] to outputs [n, num_labels], in the operations' type."""
        self._classifier, self._num_labels, self._activation, self._ops = classifier, num_labels, activation, ops

    def check(self, params: VectorParams) -> str | None:
        """See `PooledOutput`."""
        if isinstance(params, ClassificationParams) or params == PoolingParams():
            return None
        return "The model is a classifier: it gives no embeddings."

    def compute(self, vectors: Tensor, counts: I64) -> Tensor:
        """See `PooledOutput`."""
        if not len(counts):
            return vectors.new_zeros((0, self._num_labels))
        means = vectors / upload(counts, self._ops.device)[:, None]
        return self._classifier(means.to(self._ops.dtype)).float()

    def finish(self, vector: F32, count: int, params: VectorParams) -> F32:
        """See `PooledOutput`."""
        if isinstance(params, ClassificationParams) and not params.activates:
            return vector
        return activate(vector.astype(np.float64), self._activation).astype(np.float32)


def activate(outputs: NDArray[np.float64], activation: ScoreActivation) -> NDArray[np.float64]:
    """[num_labels] to the same shape. The outputs are finite."""
    if activation is ScoreActivation.NONE:
        return outputs
    if activation is ScoreActivation.SIGMOID:
        small: NDArray[np.float64] = np.exp(-np.abs(outputs))  # at most 1, so that nothing overflows
        above: NDArray[np.float64] = np.where(outputs >= 0, 1.0, small)
        return np.divide(above, 1.0 + small)
    weights: NDArray[np.float64] = np.exp(outputs - np.maximum.reduce(outputs))
    return np.divide(weights, np.add.reduce(weights))
