"""Embeddings on a GPU's operations: hidden states out of steps that also sample, and encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from services.worker.batch_state import Limits
from services.worker.kv_cache import allocate_pages
from services.worker.model_runner import ModelRunner
from services.worker.ops.interface import AttentionShape
from services.worker.ops.triton.ops import TritonOps
from services.worker.pooling.choices import PoolingKind
from services.worker.pooling.config import PoolingConfig
from tests.unit.worker.tiny_encoders import (
    embed_together,
    embeddings,
    hidden_states,
    make_encoder_runner,
    normalized,
    save_encoder,
)
from tests.unit.worker.tiny_models import make_decoder, save_model

PROMPTS = [[5, 9, 14, 3, 77, 20], [8], [31, 30, 29]]


@pytest.mark.parametrize("kind", [PoolingKind.LAST, PoolingKind.MEAN])
def test_a_decoder_s_vectors_are_those_of_transformers(device: torch.device, tmp_path: Path, kind: PoolingKind) -> None:
    model = save_model(tmp_path, "Llama", num_hidden_layers=1)
    ops = TritonOps(device, torch.float32)
    decoder = make_decoder(tmp_path, ops)
    ops.prepare_attention(AttentionShape(4, 2, 16, 16, torch.float32, torch.float32), 4, 32)
    with torch.inference_mode():
        pages = allocate_pages(decoder.config, 8, 16, device, torch.float32)
        runner = ModelRunner(decoder, ops, pages, Limits(8, 16, 4, 32, 64, 199), pooling=PoolingConfig(kind))
    for prompt, vector in zip(PROMPTS, embeddings(embed_together(runner, PROMPTS)), strict=True):
        hidden = hidden_states(model, prompt)
        expected = normalized(hidden[-1] if kind is PoolingKind.LAST else hidden.mean(0))
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_an_encoder_s_vectors_are_those_of_transformers(device: torch.device, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, num_hidden_layers=1)
    runner = make_encoder_runner(tmp_path, TritonOps(device, torch.float32), pooling_type="mean")
    for prompt, vector in zip(PROMPTS, embeddings(embed_together(runner, PROMPTS)), strict=True):
        np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt).mean(0)), atol=1e-5)
