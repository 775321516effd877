"""Log probabilities of prompt tokens, each given the tokens before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.sampling.logprobs import RawDistribution
from services.worker.transfers import upload

# Maximum number of logits that are computed at a time: 32 MiB in float32.
_SLICE_VALUES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class PromptLogprobTensors:
    """Log probabilities on the device, one entry for each of m prompt tokens."""

    valid: Tensor  # bool [m]; False if the logits are not finite
    logprobs: Tensor  # float32 [m]
    ranks: Tensor  # int64 [m]; 1 for the likeliest token
    top_token_ids: Tensor  # int64 [m, MAX_LOGPROBS], likeliest first, ties by id
    top_logprobs: Tensor  # float32 [m, MAX_LOGPROBS]

    def tensors(self) -> list[Tensor]:
        return [self.valid, self.logprobs, self.ranks, self.top_token_ids, self.top_logprobs]


def compute_prompt_logprobs(
    hidden: Tensor, logits: Callable[[Tensor], Tensor], vocab_size: int, following: NDArray[np.int64]
) -> PromptLogprobTensors:
    """Returns the log probabilities of m >= 1 prompt tokens. hidden [m, hidden]: for each of them, the hidden state of
    the token before it; `logits`: the output layer; following [m]: ids of the prompt tokens. Computes only a
    slice of rows at a time, because all logits of a long chunk could take more memory than the rest of a step."""
    num_rows = max(1, _SLICE_VALUES // vocab_size)
    targets = upload(following, hidden.device)
    slices = [
        _of_slice(logits(hidden[start : start + num_rows]), targets[start : start + num_rows])
        for start in range(0, len(following), num_rows)
    ]
    columns = zip(*(part.tensors() for part in slices), strict=True)
    return PromptLogprobTensors(*(torch.cat(column) for column in columns))


def _of_slice(logits: Tensor, targets: Tensor) -> PromptLogprobTensors:
    logits = logits.float()
    valid = logits.amax(-1).isfinite()
    distribution = logits.log_softmax(-1)
    rows = np.arange(len(targets))
    found = RawDistribution(rows, rows, distribution).look_up(targets)
    ranks = (distribution > found.logprobs[:, None]).sum(-1) + 1
    return PromptLogprobTensors(valid, found.logprobs, ranks, found.top_token_ids, found.top_logprobs)
