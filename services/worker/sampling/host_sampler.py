"""The sampler for devices without Triton kernels, above all CPUs. Applies logit bias, penalties, the token mask,
temperature and truncation, then draws tokens with the Gumbel-max trick. Each `Stage` transforms only the rows that use
it. docs/sampling.md lists the order of all stages.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops import Ops
from services.worker.plan import GeneratingSequence
from services.worker.sampling.logprobs import LogprobColumns
from services.worker.sampling.penalties import LogitBias, Penalties
from services.worker.sampling.sampler import Sample
from services.worker.sampling.stage import I64, Stage
from services.worker.sampling.token_mask import TokenMask
from services.worker.sampling.truncation import MinP, Temperature, TopK, TopP


class HostSampler:
    """See `Sampler`. Sampling parameters are kept on the host. Greedy rows without bias and penalties skip all
    stages: their token is the argmax of the logits that the mask allows."""

    def __init__(self, ops: Ops, max_num_seqs: int, vocab_size: int) -> None:
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=ops.device)
        self._ops = ops
        self._greedy = np.ones(max_num_seqs, bool)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._choice_index = np.zeros(max_num_seqs, np.int32)
        self._logprobs = LogprobColumns(max_num_seqs)
        self._penalties = Penalties(max_num_seqs, vocab_size, ops.device)
        # Stages in the order in which they are applied: first `_shaping`, then the token mask, then `_cutting`.
        self._shaping: tuple[Stage, ...] = (LogitBias(max_num_seqs), self._penalties)
        self._cutting: tuple[Stage, ...] = (
            Temperature(max_num_seqs),
            MinP(max_num_seqs),
            TopK(max_num_seqs, vocab_size),
            TopP(max_num_seqs),
        )

    def admit(self, sequence: GeneratingSequence) -> None:
        self._greedy[sequence.slot] = sequence.sampling.greedy
        self._seed[sequence.slot] = sequence.sampling.seed
        self._choice_index[sequence.slot] = sequence.choice_index
        self._logprobs.admit(sequence)
        for stage in (*self._shaping, *self._cutting):
            stage.admit(sequence)

    def sample(self, logits: Tensor, slots: I64, positions: NDArray[np.int32], mask: TokenMask | None = None) -> Sample:
        """See `Sampler`. Takes logits of any float type; float32 logits are overwritten."""
        logits = logits.float()
        # amax treats NaN as the greatest value, so one pass finds the rows with NaN, the rows with +inf, and the rows
        # that are -inf throughout. The stages may compute anything for these rows, because the results are ignored.
        valid = logits.amax(-1).isfinite()
        raw = self._logprobs.distribution(logits, slots)
        for stage in self._shaping:
            _apply(stage, logits, slots)
        if mask is not None:
            mask.apply(logits)
            valid &= logits.amax(-1) > -torch.inf
        for stage in self._cutting:
            _apply(stage, logits, slots)
        tokens = self._draw(logits, slots, positions)
        tokens.masked_fill_(~valid, 0)
        logprobs = None if raw is None else raw.look_up(tokens)
        self.last_tokens[torch.from_numpy(slots).to(tokens.device)] = tokens
        penalised = np.flatnonzero(self._penalties.active[slots])
        if len(penalised):
            self._penalties.observe(tokens[torch.from_numpy(penalised).to(tokens.device)], slots[penalised])
        return Sample(tokens, valid, logprobs)

    def _draw(self, logits: Tensor, slots: I64, positions: NDArray[np.int32]) -> Tensor:
        greedy = self._greedy[slots]
        if greedy.all():
            return _argmax(logits)
        if not greedy.any():
            return self._gumbel(logits, slots, positions)
        tokens = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        likeliest = torch.from_numpy(np.flatnonzero(greedy)).to(logits.device)
        drawn = torch.from_numpy(np.flatnonzero(~greedy)).to(logits.device)
        tokens[likeliest] = _argmax(logits[likeliest])
        tokens[drawn] = self._gumbel(logits[drawn], slots[~greedy], positions[~greedy])
        return tokens

    def _gumbel(self, logits: Tensor, slots: I64, positions: NDArray[np.int32]) -> Tensor:
        seeds, choices = self._seed[slots].view(np.int64), self._choice_index[slots]
        columns = [torch.from_numpy(np.ascontiguousarray(c)).to(logits.device) for c in (seeds, positions, choices)]
        return self._ops.sample_gumbel(logits, *columns)


def _argmax(logits: Tensor) -> Tensor:
    """Returns the token with the greatest logit of each row, int64 [n]; among equal logits, the lowest id. On a CPU
    numpy's argmax is about 50 times as fast as torch's."""
    if logits.is_cpu:
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def _apply(stage: Stage, logits: Tensor, slots: I64) -> None:
    rows = np.flatnonzero(stage.active[slots])
    if len(rows) == len(slots):
        stage.apply(logits, slots)
    elif len(rows):
        at = torch.from_numpy(rows).to(logits.device)
        part = logits[at]
        stage.apply(part, slots[rows])
        logits[at] = part
