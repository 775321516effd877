"""Temperature, and truncation to the likeliest tokens. Applied in this order: temperature, min-p, top-k, top-p.

Each truncation keeps the tokens whose logit or probability reaches a threshold. Tokens that are exactly as likely as
the last token kept are kept too, so the result does not depend on how a sort breaks ties. Min-p expects that
Temperature has shifted the row's greatest logit to 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from services.worker.plan import GeneratingSequence
from services.worker.sampling.stage import I64

# Top-p looks at the 64 likeliest tokens of a row first, then at the 1024 likeliest, and only then sorts the whole row,
# which takes about twenty times as long.
TOP_P_WIDTHS = (64, 1024)


class Temperature:
    def __init__(self, max_num_seqs: int) -> None:
        self.active = np.zeros(max_num_seqs, bool)
        self._temperature = np.ones(max_num_seqs, np.float32)

    def admit(self, sequence: GeneratingSequence) -> None:
        self._temperature[sequence.slot] = sequence.sampling.temperature
        self.active[sequence.slot] = not sequence.sampling.greedy

    def apply(self, logits: Tensor, slots: I64) -> None:
        """Shifts each row's greatest logit to 0, then divides the logits by the temperature. Because of the shift, a
        tiny temperature can overflow logits only to -inf, never to +inf."""
        logits -= logits.amax(-1, keepdim=True)
        logits /= _column(self._temperature, slots, logits)


class MinP:
    """Min-p (Nguyen et al., 2024): drops the tokens that are less than min_p times as likely as the likeliest token.
    The likeliest token must have the logit 0, so that exp(logit) is this ratio of probabilities."""

    def __init__(self, max_num_seqs: int) -> None:
        self.active = np.zeros(max_num_seqs, bool)
        self._log_min_p = np.zeros(max_num_seqs, np.float32)

    def admit(self, sequence: GeneratingSequence) -> None:
        min_p = sequence.sampling.min_p
        self.active[sequence.slot] = min_p > 0 and not sequence.sampling.greedy
        self._log_min_p[sequence.slot] = np.log(min_p) if min_p > 0 else 0.0

    def apply(self, logits: Tensor, slots: I64) -> None:
        logits.masked_fill_(logits < _column(self._log_min_p, slots, logits), -torch.inf)


class TopK:
    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self.active = np.zeros(max_num_seqs, bool)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._vocab_size = vocab_size

    def admit(self, sequence: GeneratingSequence) -> None:
        top_k = sequence.sampling.top_k
        self.active[sequence.slot] = 0 < top_k < self._vocab_size and not sequence.sampling.greedy
        self._top_k[sequence.slot] = top_k

    def apply(self, logits: Tensor, slots: I64) -> None:
        top_k = self._top_k[slots]
        greatest = logits.topk(int(top_k.max())).values  # [n, k], descending
        threshold = greatest.gather(1, torch.from_numpy(top_k[:, None] - 1).to(logits.device))
        logits.masked_fill_(logits < threshold, -torch.inf)


class TopP:
    """Top-p or nucleus sampling (Holtzman et al., 2020), over the tokens that min-p and top-k have kept."""

    def __init__(self, max_num_seqs: int) -> None:
        self.active = np.zeros(max_num_seqs, bool)
        self._top_p = np.ones(max_num_seqs, np.float32)

    def admit(self, sequence: GeneratingSequence) -> None:
        self._top_p[sequence.slot] = sequence.sampling.top_p
        self.active[sequence.slot] = sequence.sampling.top_p < 1.0 and not sequence.sampling.greedy

    def apply(self, logits: Tensor, slots: I64) -> None:
        probabilities = logits.softmax(-1)
        top_p = _column(self._top_p, slots, logits)  # [n, 1]
        threshold = torch.empty_like(top_p)
        missing = torch.arange(len(logits), device=logits.device)  # rows whose threshold is not found yet
        vocab_size = logits.shape[1]
        for width in (*TOP_P_WIDTHS, vocab_size):
            # The width does not change the threshold, because a wider row begins with the same probabilities, and
            # therefore with the same cumulative sums.
            likeliest = _likeliest(probabilities[missing], min(width, vocab_size))
            threshold[missing], reached = _nucleus(likeliest, top_p[missing])
            missing = missing[~reached]
            if not len(missing):
                break
        logits.masked_fill_(probabilities < threshold, -torch.inf)


def _likeliest(probabilities: Tensor, count: int) -> Tensor:
    """Returns the greatest probabilities of each row, descending: [n, count]."""
    if count < probabilities.shape[1]:
        return probabilities.topk(count).values
    if probabilities.is_cpu:  # numpy's vectorized sort is about five times as fast as torch's
        return torch.from_numpy(np.sort(probabilities.numpy())[:, ::-1].copy())
    return probabilities.sort(descending=True).values


def _nucleus(descending: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the smallest probability that each row keeps, [n, 1], and whether the row's sum reaches top_p, [n]. For a
    row whose sum does not reach top_p, the first result is the row's last probability. descending [n, k]: probabilities
    in descending order."""
    enough = descending.cumsum(-1) >= top_p  # [n, k]
    reached = enough[:, -1]
    last = torch.where(reached, enough.to(torch.uint8).argmax(-1), descending.shape[1] - 1)
    return descending.gather(1, last[:, None]), reached


def _column(values: np.ndarray[tuple[int], np.dtype[np.float32]], slots: I64, like: Tensor) -> Tensor:
    """Returns the slots' values as a column, float32 [n, 1], on the device of `like`."""
    return torch.from_numpy(values[slots]).to(like.device)[:, None]
