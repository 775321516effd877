"""The runner's own steps, mixed and run ahead, with Triton's attention in an otherwise plain model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, AttentionWork, KVPages
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.attention.paged import PagedAttention
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import VOCAB_SIZE, NearTies, make_runner, save_model
from tests.unit.worker.triton.attention_steps import SMALL


class PlainOps(ReferenceOps):
    def __init__(self, device: torch.device, attention: PagedAttention) -> None:
        super().__init__(device, torch.float32)
        self._attention = attention

    def plan_attention(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork | None:
        return self._attention.plan(query_starts, positions)

    def paged_attention(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> Tensor:
        return self._attention(q, batch, pages, form)


@pytest.mark.parametrize("batch_invariant", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_greedy_tokens_are_those_of_transformers(device: torch.device, tmp_path: Path, batch_invariant: bool) -> None:
    layers = {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    model = save_model(tmp_path, "Qwen3", **layers)
    shape = AttentionShape(4, 2, 16, 16, 16, torch.float32, torch.float32)
    attention = PagedAttention([shape], device, 16, 256, batch_invariant=batch_invariant, config=SMALL)
    chooser = random.Random(3)
    requests = [Request([chooser.randrange(VOCAB_SIZE) for _ in range(length)], 5) for length in (1, 33, 60)]
    runner = make_runner(tmp_path, ops=PlainOps(device, attention))
    Driver(runner, seed=1, max_chunk=20).run(*requests)
    ties = NearTies()
    for request in requests:
        ties.check(model, request.prompt, request.output)
    ties.report()
