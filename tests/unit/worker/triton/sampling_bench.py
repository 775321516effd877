"""The sampling kernels without the sampler: rows, parameters and scratch as they see them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from services.worker.ops.triton.sampling import columns as c
from services.worker.ops.triton.sampling.pipeline import Pipeline, SampleRows, SlotState
from services.worker.plan.sampling_params import SamplingParams

POSITION = 7


@dataclass
class Bench:
    """A pipeline whose slot s is row s, with one SamplingParams per slot."""

    params: list[SamplingParams]
    vocab_size: int
    device: torch.device

    def __post_init__(self) -> None:
        n = len(self.params)
        table = np.zeros((n, c.WIDTH.value), np.int32)
        for entry, params in zip(table, self.params, strict=True):
            numbers = entry.view(np.float32)
            numbers[c.TEMPERATURE.value], numbers[c.TOP_P.value] = params.temperature, params.top_p
            numbers[c.LOG_MIN_P.value] = np.log(params.min_p) if params.min_p > 0 else -np.inf
            entry[c.TOP_K.value] = params.top_k
            entry[[c.COUNTS_ROW.value, c.BIAS_ROW.value]] = -1
            entry[c.SEED.value : c.SEED.value + 2] = np.array([params.seed], np.uint64).view(np.int32)
        self.pipeline = Pipeline(n, self.vocab_size, self.device)
        self.rows = SampleRows(
            *(
                torch.tensor(column, dtype=torch.int32, device=self.device)
                for column in (range(n), [POSITION] * n, [-1] * n)
            )
        )
        none = torch.zeros((1, self.vocab_size), device=self.device)
        last = torch.full((n,), -1, dtype=torch.int64, device=self.device)
        self.state = SlotState(torch.from_numpy(table).to(self.device), none.int(), none, last)
