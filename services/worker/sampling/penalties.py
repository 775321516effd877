"""Logit bias, and repetition (Keskar et al., 2019, section 4.1), presence and frequency penalties."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from services.worker.plan import GeneratingSequence
from services.worker.sampling.stage import I64

NEUTRAL = np.array((1.0, 0.0, 0.0), np.float32)  # repetition, presence, frequency


class Penalties:
    """Keeps, for slots with a penalty, which tokens are in the prompt and how often each token is in the output.

    Few sequences have penalties, so slots take rows of [vocab] from a pool. The pool doubles when no row is free.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self.active = np.zeros(max_num_seqs, bool)
        self._parameters = np.tile(NEUTRAL, (max_num_seqs, 1))
        self._pool_row = np.full(max_num_seqs, -1, np.int64)
        self._free: list[int] = []
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._output_counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)

    def admit(self, sequence: GeneratingSequence) -> None:
        slot, sampling = sequence.slot, sequence.sampling
        self._parameters[slot] = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        self.active[slot] = (self._parameters[slot] != NEUTRAL).any()
        if not self.active[slot]:
            self._give_back(slot)
            return
        row = self._pool_row[slot] = self._pool_row[slot] if self._pool_row[slot] >= 0 else self._take()
        prompt, output = np.split(sequence.token_ids.astype(np.int64), [sequence.num_prompt_tokens])
        device = self._in_prompt.device
        self._in_prompt[row].zero_()[torch.from_numpy(prompt).to(device)] = True
        counts = self._output_counts[row].zero_()
        counts.index_add_(0, torch.from_numpy(output).to(device), counts.new_ones(len(output)))

    def apply(self, logits: Tensor, slots: I64) -> None:
        rows = torch.from_numpy(self._pool_row[slots]).to(logits.device)
        columns = torch.from_numpy(self._parameters[slots]).to(logits.device)  # [n, 3]
        repetition, presence, frequency = columns.unsqueeze(-1).unbind(1)  # [n, 1] each
        counts = self._output_counts[rows]  # [n, vocab]
        in_use = (self._parameters[slots] != NEUTRAL).any(axis=0)
        # Skip penalties that no row uses. The results are the same bit for bit: a neutral penalty changes no logit.
        if in_use[0]:
            seen = self._in_prompt[rows] | (counts > 0)
            penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
            logits.copy_(torch.where(seen, penalised, logits))
        if in_use[1]:
            logits -= (counts > 0) * presence
        if in_use[2]:
            logits -= counts * frequency

    def observe(self, tokens: Tensor, slots: I64) -> None:
        rows = torch.from_numpy(self._pool_row[slots]).to(tokens.device)
        # A repeated index would be counted only once, but no slot occurs twice in a step.
        self._output_counts[rows, tokens] += 1

    def _take(self) -> int:
        if not self._free:
            have = len(self._in_prompt)
            more = max(1, have)
            self._in_prompt = _extended(self._in_prompt, more)
            self._output_counts = _extended(self._output_counts, more)
            self._free = list(range(have, have + more))
        return self._free.pop()

    def _give_back(self, slot: int) -> None:
        if self._pool_row[slot] >= 0:
            self._free.append(int(self._pool_row[slot]))
            self._pool_row[slot] = -1


class LogitBias:
    def __init__(self, max_num_seqs: int) -> None:
        self.active = np.zeros(max_num_seqs, bool)
        self._biases: list[tuple[tuple[int, float], ...]] = [()] * max_num_seqs

    def admit(self, sequence: GeneratingSequence) -> None:
        self._biases[sequence.slot] = sequence.sampling.logit_bias
        self.active[sequence.slot] = bool(sequence.sampling.logit_bias)

    def apply(self, logits: Tensor, slots: I64) -> None:
        entries = [(row, *bias) for row, slot in enumerate(slots.tolist()) for bias in self._biases[slot]]
        rows, tokens, values = zip(*entries, strict=True)
        device = logits.device
        at = (torch.tensor(rows, device=device), torch.tensor(tokens, device=device))
        logits.index_put_(at, torch.tensor(values, dtype=torch.float32, device=device), accumulate=True)


def _extended(rows: Tensor, more: int) -> Tensor:
    return torch.cat((rows, rows.new_zeros(more, rows.shape[1])))
