"""The sampler for GPUs. Sampling parameters lie on the device. A step takes only a few kernel launches, whatever its
batch size, and the host never waits for the device.

The host keeps a copy of the parameter columns, and flags that tell which launches a step can skip. If a sequence was
admitted since the last sample, `sample` first copies all columns (64 bytes per slot) to the device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.triton import Pipeline, SampleRows, SlotState, Stages, columns
from services.worker.plan import GeneratingSequence, SamplingParams
from services.worker.sampling.given_tokens import GivenColumns
from services.worker.sampling.logprobs import LogprobTensors
from services.worker.sampling.row_pool import RowPool
from services.worker.sampling.sampler import Sample
from services.worker.sampling.stage import I64
from services.worker.sampling.token_mask import TokenMask
from services.worker.transfers import upload, upload_into

NO_PENALTIES = (1.0, 0.0, 0.0)  # repetition, presence, frequency


class DeviceSampler:
    """See `Sampler`. Takes logits of any float type and does not change them."""

    def __init__(self, device: torch.device, max_num_seqs: int, vocab_size: int) -> None:
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._device = device
        self._vocab_size = vocab_size
        self._pipeline = Pipeline(max_num_seqs, vocab_size, device)
        self._counts = RowPool(max_num_seqs, vocab_size, torch.int32, device)
        self._biases = RowPool(max_num_seqs, vocab_size, torch.float32, device)
        self._table: NDArray[np.int32] = np.zeros((max_num_seqs, columns.WIDTH.value), np.int32)
        self._columns = torch.zeros(self._table.shape, dtype=torch.int32, device=device)
        self._changed = False
        self._shapes = np.zeros(max_num_seqs, bool)  # slots that need more than the argmax of the logits
        self._cuts = np.zeros(max_num_seqs, bool)  # slots with top-k or top-p
        self._top_count: NDArray[np.int64] = np.full(max_num_seqs, -1, np.int64)  # -1: no log probabilities
        self._given = GivenColumns(max_num_seqs)

    def admit(self, sequence: GeneratingSequence) -> None:
        slot, sampling = sequence.slot, sequence.sampling
        entry = self._table[slot]
        entry.fill(0)
        self._write_numbers(entry.view(np.float32), sampling)
        top_k = sampling.top_k if sampling.top_k < self._vocab_size else 0
        entry[columns.TOP_K.value] = top_k
        seed = columns.SEED.value
        entry[seed : seed + 2] = np.array([sampling.seed], np.uint64).view(np.int32)
        entry[columns.CHOICE.value] = sequence.choice_index
        entry[columns.COUNTS_ROW.value] = self._count(sequence)
        entry[columns.BIAS_ROW.value] = self._bias(sequence)
        shaped = max(entry[columns.COUNTS_ROW.value], entry[columns.BIAS_ROW.value]) >= 0
        self._shapes[slot] = shaped or not sampling.greedy
        self._cuts[slot] = not sampling.greedy and (top_k > 0 or sampling.top_p < 1.0)
        self._top_count[slot] = -1 if sampling.logprobs is None else min(sampling.logprobs, self._vocab_size)
        self._given.admit(sequence)
        self._changed = True

    def sample(self, logits: Tensor, slots: I64, positions: NDArray[np.int32], mask: TokenMask | None = None) -> Sample:
        """See `Sampler`."""
        if self._changed:
            upload_into(self._table, self._columns)
            self._changed = False
        # Each row is padded to a multiple of 16 bytes, so that every row's address is aligned to 16 bytes. For less
        # aligned pointers, Triton would compile the kernels a second time.
        wanted = np.full((3, -(-len(slots) // 4) * 4), -1, np.int32)
        wanted[0, : len(slots)], wanted[1, : len(slots)] = slots, positions
        if mask is not None:
            wanted[2, mask.rows] = np.arange(len(mask.rows))
        rows = SampleRows(*upload(wanted, self._device)[:, : len(slots)])
        state = SlotState(self._columns, self._counts.rows, self._biases.rows, self.last_tokens)
        stages = Stages(bool(self._shapes[slots].any()) or mask is not None, bool(self._cuts[slots].any()))
        logprobs = self._room_for_logprobs(slots)
        given = None if logprobs is None else self._given.of(logits, logprobs[1].rows, slots[logprobs[1].rows])
        # `run` changes the slots' state, so memory must not run out after it (see `Sampler.sample`). The memory for log
        # probabilities was therefore allocated before.
        tokens, valid = self._pipeline.run(logits, rows, state, None if mask is None else mask.bits, stages)
        if logprobs is None:
            return Sample(tokens, valid, None)
        asking, room = logprobs
        self._pipeline.log_probabilities(logits, asking, tokens, (room.logprobs, room.top_token_ids, room.top_logprobs))
        if given is not None:
            # A row's normalizers turn the logit of any token of the row into its log probability.
            given.normalize(self._pipeline.normalizers)
            given.write(room.top_token_ids, room.top_logprobs)
        return Sample(tokens, valid, room)

    def _room_for_logprobs(self, slots: I64) -> tuple[Tensor, LogprobTensors] | None:
        """Returns the indices of the rows that ask for log probabilities, int64 [m] on the device, and uninitialized
        tensors for the results; None if no row asks. Call it before sampling changes any state, see `Sampler.sample`.
        """
        counts = self._top_count[slots]
        rows = np.flatnonzero(counts >= 0)
        if not len(rows):
            return None
        asking = upload(rows, self._device)
        top_counts = self._given.top_counts(slots[rows], counts[rows])
        return asking, LogprobTensors(rows, top_counts, *self._pipeline.empty_log_probabilities(asking))

    def _count(self, sequence: GeneratingSequence) -> int:
        """Writes the counts of the sequence's tokens so far into a row of the pool. Returns the row's index; -1 if the
        sequence has no penalties."""
        sampling = sequence.sampling
        if (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == NO_PENALTIES:
            self._counts.give_back(sequence.slot)
            return -1
        row = self._counts.take(sequence.slot)
        prompt, output = np.split(sequence.token_ids.astype(np.int64), [sequence.num_prompt_tokens])
        counts = self._counts.rows[row]
        counts.index_fill_(0, upload(prompt, self._device), columns.IN_PROMPT.value)
        counts.index_add_(0, upload(output, self._device), counts.new_ones(len(output)))
        return row

    def _bias(self, sequence: GeneratingSequence) -> int:
        biases = sequence.sampling.logit_bias
        if not biases:
            self._biases.give_back(sequence.slot)
            return -1
        row = self._biases.take(sequence.slot)
        tokens, which = np.unique([token for token, _ in biases], return_inverse=True)
        values = np.bincount(which, [bias for _, bias in biases]).astype(np.float32)
        self._biases.rows[row].index_copy_(0, upload(tokens, self._device), upload(values, self._device))
        return row

    @staticmethod
    def _write_numbers(entry: NDArray[np.float32], sampling: SamplingParams) -> None:
        entry[columns.TEMPERATURE.value] = sampling.temperature
        entry[columns.LOG_MIN_P.value] = np.log(sampling.min_p) if sampling.min_p > 0 else -np.inf
        entry[columns.TOP_P.value] = sampling.top_p
        entry[columns.REPETITION.value] = sampling.repetition_penalty
        entry[columns.PRESENCE.value] = sampling.presence_penalty
        entry[columns.FREQUENCY.value] = sampling.frequency_penalty
