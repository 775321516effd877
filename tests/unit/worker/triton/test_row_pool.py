"""Rows of counts for the few slots that want them."""

from __future__ import annotations

import numpy as np
import torch

from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence
from services.worker.sampling.device_sampler import DeviceSampler
from services.worker.sampling.row_pool import RowPool

CPU = torch.device("cpu")


def test_it_doubles_up_to_a_row_per_slot_and_keeps_what_is_there() -> None:
    pool = RowPool(5, 3, torch.int32, CPU)
    rows = []
    for slot, size in enumerate((1, 2, 4, 4, 5)):
        rows.append(pool.take(slot))
        assert len(pool.rows) == size
        pool.rows[rows[-1]] = slot + 1
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert pool.rows[rows, 0].tolist() == [1, 2, 3, 4, 5]


def test_a_row_is_zeros_whoever_had_it() -> None:
    pool = RowPool(5, 3, torch.int32, CPU)
    row = pool.take(2)
    pool.rows[row] = 7
    assert pool.take(2) == row
    assert not pool.rows.any()
    pool.rows[row] = 7
    pool.give_back(2)
    pool.give_back(2)
    assert pool.take(4) == row
    assert not pool.rows.any()
    assert pool.take(2) != row


def test_sequences_without_penalties_and_biases_leave_their_rows_to_others(device: torch.device) -> None:
    sampler = DeviceSampler(device, 6, 20)
    plain = SamplingParams()
    demanding = SamplingParams(presence_penalty=1.0, logit_bias=((3, 1.0),))
    for slot in range(6):
        for params in (demanding, plain):
            tokens = np.array([1], np.uint32)
            sampler.admit(GeneratingSequence(slot, slot, tokens, 1, 0, np.zeros(1, np.uint32), params, choice_index=0))
    assert len(sampler._counts.rows) == len(sampler._biases.rows) == 1
