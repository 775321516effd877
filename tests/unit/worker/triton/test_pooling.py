"""Embeddings on a GPU's operations: hidden states out of steps that also sample, and encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from services.worker.ops.interface import AttentionShape
from services.worker.ops.triton.ops import TritonOps
from services.worker.pages.kv_cache import allocate_pages
from services.worker.plan.batch import Limits
from services.worker.pooling.config import PoolingConfig, PoolingKind
from services.worker.startup.device import compose_device
from services.worker.startup.runners import create_decoder_runner
from services.worker.step.model_runner import ModelRunner
from tests.integration.engine.mixed import MixedEngine
from tests.unit.worker.tiny_encoders import (
    embed_together,
    embeddings,
    hidden_states,
    make_encoder_runner,
    normalized,
    save_encoder,
)
from tests.unit.worker.tiny_models import make_decoder, save_model
from tests.unit.worker.triton.remembering import RememberingRecorder

PROMPTS = [[5, 9, 14, 3, 77, 20], [8], [31, 30, 29]]


def decoder_runner(directory: Path, device: torch.device, limits: Limits, kind: PoolingKind) -> ModelRunner:
    ops = TritonOps(device, torch.float32)
    decoder = make_decoder(directory, ops)
    shape = AttentionShape(4, 2, 16, 16, limits.block_size, torch.float32, torch.float32)
    ops.prepare_attention([shape], limits.max_num_seqs, limits.max_num_batched_tokens)
    with torch.inference_mode():
        pages = allocate_pages(decoder.config, limits.num_blocks, limits.block_size, device, torch.float32)
        return create_decoder_runner(decoder, compose_device(ops), pages, limits, pooling=PoolingConfig(kind))


@pytest.mark.parametrize("kind", [PoolingKind.LAST, PoolingKind.MEAN])
def test_a_decoder_s_vectors_are_those_of_transformers(device: torch.device, tmp_path: Path, kind: PoolingKind) -> None:
    model = save_model(tmp_path, "Llama", num_hidden_layers=1)
    runner = decoder_runner(tmp_path, device, Limits(8, 16, 4, 32, 64, 199), kind)
    for prompt, vector in zip(PROMPTS, embeddings(embed_together(runner, PROMPTS)), strict=True):
        hidden = hidden_states(model, prompt)
        expected = normalized(hidden[-1] if kind is PoolingKind.LAST else hidden.mean(0))
        np.testing.assert_allclose(vector, expected, atol=1e-5)


@pytest.mark.parametrize("kind", [PoolingKind.LAST, PoolingKind.MEAN])
def test_graphs_also_serve_rows_that_are_pooled_or_want_their_prompts_log_probabilities(
    device: torch.device, tmp_path: Path, kind: PoolingKind
) -> None:
    """Four tokens a step: beside three sequences that generate, a prompt is computed token by token."""
    model = save_model(tmp_path, "Llama", num_hidden_layers=1)
    runner, recorder = decoder_runner(tmp_path, device, Limits(24, 16, 4, 4, 64, 199), kind), RememberingRecorder()
    runner.record_graphs(recorder, runner.graph_buckets)
    engine = MixedEngine(runner, kind)
    for free in (0, 4, 8):
        engine.submit(free, [5 + free], 14)
    for key, prompt in ((2, PROMPTS[0]), (3, PROMPTS[0])):
        engine.submit(key, prompt, 1)
    engine.run()
    engine.check(model)
    of_prompts = [step for step in engine.steps if step.computed.prompt is not None]
    pooled = [step for step in engine.steps if step.computed.pooled is not None]
    assert of_prompts
    assert pooled
    assert all(len(step.batch.token_ids) == len(step.batch.slots) for step in of_prompts + pooled)
    assert len(recorder.replayed) == sum(len(step.batch.slots) > 0 for step in engine.steps)


def test_an_encoder_s_vectors_are_those_of_transformers(device: torch.device, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, num_hidden_layers=1)
    runner = make_encoder_runner(tmp_path, TritonOps(device, torch.float32), pooling_type="mean")
    for prompt, vector in zip(PROMPTS, embeddings(embed_together(runner, PROMPTS)), strict=True):
        np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt).mean(0)), atol=1e-5)
