"""Embeddings equal transformers' in float32, for each encoder, and have the same bits alone and in a batch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from services.worker.errors import ModelError
from services.worker.models.encoder_config import read_encoder_config
from services.worker.models.encoders.mpnet import bucket
from tests.models.case import Case, chosen
from tests.models.encoder_cases import CASES
from tests.models.tiny import VOCAB_SIZE, save_encoder
from tests.unit.worker.tiny_encoders import (
    embed_together,
    embeddings,
    hidden_states,
    make_encoder_runner,
    normalized,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", chosen(CASES), ids=str)
def test_embeddings_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, case)
    runner = make_encoder_runner(tmp_path, pooling_type="mean", max_num_batched_tokens=512)
    chooser = random.Random(str(case))
    prompts = [[chooser.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 2, 17, 64, 65, 200)]
    vectors = embeddings(embed_together(runner, prompts))
    for prompt, vector in zip(prompts, vectors, strict=True):
        np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt).mean(0)), atol=1e-5)
        assert np.array_equal(embeddings(embed_together(runner, [prompt]))[0], vector)


def test_distances_have_mpnet_s_buckets() -> None:
    distances = torch.arange(-300, 301)
    expected = MPNetEncoder.relative_position_bucket(distances)
    assert [bucket(distance) for distance in distances.tolist()] == expected.tolist()


PUBLISHED_NOMIC: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "activation_function": "swiglu",
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 3,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "layer_norm_epsilon": 1e-12,
    "vocab_size": VOCAB_SIZE,
}


def test_nomic_s_published_keys_mean_what_those_of_transformers_mean(tmp_path: Path) -> None:
    save_encoder(tmp_path, Case("nomic_bert", {"max_position_embeddings": 2048, "layer_norm_eps": 1e-12}))
    expected = read_encoder_config(tmp_path)
    assert expected is not None
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED_NOMIC))
    config = read_encoder_config(tmp_path)
    assert config is not None
    assert config.network == expected.network


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prenorm": True}, "sets prenorm to true, which is not supported"),
        ({"activation_function": "gelu"}, 'activation_function is "gelu"; expected swiglu'),
        ({"num_experts": 8}, "encoders with experts are not supported"),
    ],
)
def test_other_networks_of_nomic_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED_NOMIC | changes))
    with pytest.raises(ModelError, match=message):
        read_encoder_config(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("NomicBertModel", {"head_dim": 32}, "head_dim is 32; expected 64, as hidden_size and num_attention_heads say"),
        ("GteModel", {"head_dim": 32}, "head_dim is 32; expected 64, as hidden_size and num_attention_heads say"),
        ("GteModel", {"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor of the hidden size"),
        ("DistilBertModel", {"n_heads": 5}, "n_heads is 5; expected a divisor of the hidden size, 768"),
        ("ModernBertModel", {"layer_types": [[]] * 22}, "expected sliding_attention or full_attention for each layer"),
    ],
)
def test_what_the_forward_pass_does_not_cover_is_refused(
    tmp_path: Path, architecture: str, values: dict[str, Any], message: str
) -> None:
    config = {"architectures": [architecture], "num_attention_heads": 12}
    (tmp_path / "config.json").write_text(json.dumps(config | values))
    with pytest.raises(ModelError, match=message):
        read_encoder_config(tmp_path)
