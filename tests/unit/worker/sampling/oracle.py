"""Sampling as `sampling.proto` and docs/sampling.md describe it, row by row in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.worker.plan.sampling_params import SamplingParams

F64 = NDArray[np.float64]


def transformed(
    logits: F64, prompt: list[int], output: list[int], params: SamplingParams, allowed: NDArray[np.int64] | None = None
) -> F64:
    """[vocab] -> [vocab]: what the softmax is taken of; -inf for tokens that are cut. Equals of the last kept stay.
    `allowed`: the ids that a grammar allows."""
    x: F64 = logits.copy()
    for token, bias in params.logit_bias:
        x[token] += bias
    for token in {*prompt, *output}:
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
    for token in set(output):
        x[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    if allowed is not None:
        x[np.setdiff1d(np.arange(len(x)), allowed)] = -np.inf
    if params.greedy:
        return x
    x = (x - x.max()) / params.temperature
    if params.min_p > 0:
        x[x < np.log(params.min_p)] = -np.inf
    if 0 < params.top_k < len(x):
        x[x < np.sort(x)[-params.top_k]] = -np.inf
    if params.top_p < 1:
        probabilities = softmax(x)
        descending = np.sort(probabilities)[::-1]
        enough = np.flatnonzero(np.cumsum(descending) >= params.top_p)
        x[probabilities < descending[enough[0] if len(enough) else -1]] = -np.inf
    return x


def softmax(x: F64) -> F64:
    weights: F64 = np.exp(x - x.max())
    probabilities: F64 = weights / weights.sum()
    return probabilities
