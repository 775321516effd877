"""Greedy output equals transformers' in float32, for every family, through random batches, chunks and preemptions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import VOCAB_SIZE, NearTies, make_runner, save_model

pytestmark = pytest.mark.usefixtures("one_thread")

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MIXED_LAYERS = ["full_attention", "sliding_attention", "full_attention"]

CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    # name: family, configuration, block size
    "llama": ("Llama", {}, 16),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}, 8),
    "llama, one KV head": ("Llama", {"num_key_value_heads": 1}, 8),
    "llama, as many KV heads as heads": ("Llama", {"num_key_value_heads": 4}, 32),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}, 16),
    "llama, rope linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}},
        16,
    ),
    "llama, rope llama3": ("Llama", {"rope_parameters": LLAMA3}, 16),
    "llama, rope yarn": ("Llama", {"rope_parameters": YARN}, 16),
    "llama, rope yarn with its own temperature": (
        "Llama",
        {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}},
        16,
    ),
    "llama, rope yarn of two scales": ("Llama", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}}, 16),
    "mistral, window": ("Mistral", {"sliding_window": 20}, 8),
    "mistral, no window": ("Mistral", {"sliding_window": None}, 16),
    "ministral, mixed layers": ("Ministral", {"sliding_window": 12, "layer_types": MIXED_LAYERS}, 16),
    "qwen2": ("Qwen2", {}, 16),
    "qwen2, window in the last layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1},
        16,
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}, 16),
    "qwen3, window by layer": (
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": 9, "layer_types": MIXED_LAYERS, "tie_word_embeddings": True},
        32,
    ),
    "smollm3, a layer without rope": ("SmolLM3", {"no_rope_layer_interval": 2}, 16),
    "seed-oss": ("SeedOss", {"attention_bias": True, "attention_out_bias": True}, 16),
    "cwm, window in three layers of four": ("Cwm", {"num_hidden_layers": 5, "sliding_window": 12}, 16),
    "cwm, window by layer, rope linear": (
        "Cwm",
        {
            "sliding_window": 9,
            "layer_types": MIXED_LAYERS,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
        },
        8,
    ),
    "emu3": ("Emu3", {}, 16),
    "emu3, biases": ("Emu3", {"attention_bias": True, "mlp_bias": True}, 16),
    "phi3": ("Phi3", {}, 16),
    "phi3, rope on a part of each head": (
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        16,
    ),
    "phi3, window": ("Phi3", {"sliding_window": 20, "num_key_value_heads": 1}, 8),
    "internlm3, rope dynamic": (
        "InternLM3",
        {
            "num_key_value_heads": 1,
            "max_position_embeddings": 128,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 6.0},
        },
        16,
    ),
    "internlm3, biases": ("InternLM3", {"attention_bias": True, "mlp_bias": True}, 32),
    "iquestcoder": ("IQuestCoder", {}, 16),
    "iquestcoder, biases": ("IQuestCoder", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_output_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    family, overrides, block_size = CASES[case]
    reference = save_model(tmp_path, family, **overrides)
    runner = make_runner(tmp_path, block_size, num_blocks=1600 // block_size)
    chooser = random.Random(case)
    requests = [
        Request([chooser.randrange(3, VOCAB_SIZE) for _ in range(chooser.choice((1, 2, 17, 40, 90)))], num_outputs=12)
        for _ in range(9)
    ]
    driver = Driver(runner, seed=len(case), max_chunk=chooser.choice((1, 5, 64)), max_running=6, preempt=0.05)
    near_ties = NearTies()
    for request in driver.run(*requests):
        assert request.error is None
        assert len(request.output) == 12
        near_ties.check(reference, request.prompt, request.output)
    near_ties.report()
