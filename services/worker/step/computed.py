"""Holds the results of a step as tensors on the device, and builds log probabilities from their host copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.worker.plan import Logprobs, PromptLogprobs, PromptTokens
from services.worker.sampling import LogprobTensors, PromptLogprobTensors, Sample
from services.worker.step.pooler import Pooled


@dataclass(frozen=True, slots=True)
class Computed:
    """Results of a step, on the device."""

    sample: Sample | None  # None: nothing was sampled
    prompt: PromptLogprobTensors | None  # None: no sequence asked for log probabilities of prompt tokens
    pooled: Pooled | None  # None: nothing was pooled

    def tensors(self) -> list[Tensor]:
        """Returns the tensors of the sample, then of the prompt log probabilities, then of the pooled vectors."""
        return [tensor for part in self._parts() for tensor in part]

    def split(self, arrived: Sequence[NDArray[Any]]) -> list[Sequence[NDArray[Any]]]:
        """Splits `arrived`, the host copies of the tensors that `tensors` returns, into three parts: sample, prompt log
        probabilities, pooled vectors."""
        counts = [len(part) for part in self._parts()]
        return [arrived[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]

    def _parts(self) -> list[list[Tensor]]:
        return [[] if part is None else part.tensors() for part in (self.sample, self.prompt, self.pooled)]


NOTHING = Computed(None, None, None)


def collect_logprobs(of: LogprobTensors, arrays: Sequence[NDArray[Any]], valid: NDArray[np.bool_]) -> Logprobs | None:
    """Returns the log probabilities of the rows that ask for log probabilities and have a valid token; None if there
    are no such rows.

    `valid` [n]: for each row of the sample, whether its token is valid. `arrays`: host copies of the device tensors in
    `of`."""
    keep = np.flatnonzero(valid[of.rows])
    if not len(keep):
        return None
    logprobs, top_token_ids, top_logprobs = arrays
    index_of = np.cumsum(valid) - 1  # a row's index among the valid rows
    counts = of.top_counts[keep]
    within = np.arange(top_token_ids.shape[1])[None, :] < counts[:, None]
    return Logprobs(
        token_indices=index_of[of.rows[keep]].astype(np.uint32),
        logprobs=logprobs[keep],
        top_counts=counts.astype(np.uint32),
        top_token_ids=top_token_ids[keep][within].astype(np.uint32),
        top_logprobs=top_logprobs[keep][within],
    )


def collect_prompt_logprobs(of: PromptTokens, arrays: Sequence[NDArray[Any]]) -> tuple[PromptLogprobs, list[int]]:
    """Returns the prompt log probabilities of the sequences whose logits are all finite, and the wire ids of the other
    sequences.

    `arrays`: host copies of the tensors of `PromptLogprobTensors`."""
    valid, logprobs, ranks, top_token_ids, top_logprobs = arrays
    counts = np.diff(of.offsets)
    fine = np.logical_and.reduceat(valid, of.offsets[:-1])
    entries = np.repeat(fine, counts)
    within = np.arange(top_token_ids.shape[1])[None, :] < np.repeat(of.top_counts, counts)[entries][:, None]
    kept = PromptLogprobs(
        wire_ids=of.wire_ids[fine].astype(np.uint32),
        first_positions=of.first_positions[fine].astype(np.uint32),
        offsets=np.concatenate(([0], np.cumsum(counts[fine]))).astype(np.uint32),
        logprobs=logprobs[entries],
        ranks=ranks[entries].astype(np.uint32),
        top_counts=of.top_counts[fine].astype(np.uint32),
        top_token_ids=top_token_ids[entries][within].astype(np.uint32),
        top_logprobs=top_logprobs[entries][within],
    )
    return kept, of.wire_ids[~fine].tolist()
