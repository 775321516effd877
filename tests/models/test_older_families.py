"""What Bloom, Falcon, MPT and GPT-NeoX-Japanese read from config.json and from published checkpoints, in all their
spellings, and what is refused with which sentence."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from services.worker.errors import ModelError
from services.worker.models import ModelConfig
from services.worker.models.config import read_model_config
from services.worker.models.layers import alibi_slopes
from tests.models.case import Case
from tests.models.tiny import save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner

modeling_mpt: Any = transformers.models.mpt.modeling_mpt

BLOOM: dict[str, Any] = {
    "architectures": ["BloomForCausalLM"],
    "vocab_size": 100,
    "n_embed": 64,
    "n_layer": 2,
    "num_attention_heads": 4,
}
FALCON: dict[str, Any] = {
    "architectures": ["FalconForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPS: dict[str, Any] = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
# The keys of the first checkpoints, from before transformers had the architecture.
FIRST_FALCON: dict[str, Any] = {
    "architectures": ["RWForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "n_layer": 2,
    "n_head": 4,
}
MPT: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"],
    "vocab_size": 100,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
}

JAPANESE: dict[str, Any] = {
    "architectures": ["GPTNeoXJapaneseForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def read(directory: Path, config: dict[str, Any]) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    return read_model_config(directory)


@pytest.mark.parametrize(
    ("first", "now"),
    [
        (
            {"model_type": "RefinedWebModel", "multi_query": True, "parallel_attn": True},  # Falcon-7B
            FALCON,
        ),
        (
            {"model_type": "RefinedWebModel", "alibi": True, "bias": True},  # Falcon-RW
            FALCON | {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
        ),
        ({"model_type": "RefinedWeb", "n_head_kv": 2}, GROUPS),  # Falcon-40B
    ],
)
def test_the_first_falcons_are_those_of_today(tmp_path: Path, first: dict[str, Any], now: dict[str, Any]) -> None:
    assert read(tmp_path, FIRST_FALCON | first).network == read(tmp_path, now).network


@pytest.mark.parametrize(
    ("given", "other"),
    [
        (BLOOM, BLOOM | {"n_embed": None, "hidden_size": 64}),
        (BLOOM, BLOOM | {"n_layer": None, "num_hidden_layers": 2, "num_attention_heads": None, "n_head": 4}),
        (JAPANESE, JAPANESE | {"rotary_pct": 1.0, "rotary_emb_base": 10000, "intermediate_multiple_size": 4}),
        (
            JAPANESE | {"rotary_pct": 0.5, "rotary_emb_base": 500},
            JAPANESE | {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        ),
        (MPT, MPT | {"architectures": ["MptForCausalLM"], "attn_config": {"clip_qkv": 0, "alibi_bias_max": 8}}),
    ],
)
def test_spellings_of_one_configuration_read_the_same(
    tmp_path: Path, given: dict[str, Any], other: dict[str, Any]
) -> None:
    assert read(tmp_path, given).network == read(tmp_path, other).network


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (BLOOM | {"slow_but_exact": True}, "sets slow_but_exact to true, which is not supported"),
        (BLOOM | {"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor of the hidden size, 64"),
        (FALCON | {"apply_residual_connection_post_layernorm": True}, "sets apply_residual_connection_post_layernorm"),
        (FALCON | {"num_ln_in_parallel_attn": 2}, "expected 1 without new_decoder_architecture"),
        (FALCON | {"multi_query": False, "num_kv_heads": 2}, "expected the number of heads, 4, without"),
        (GROUPS | {"num_kv_heads": 3}, "num_kv_heads is 3; expected a divisor of the number of heads, 4"),
        (GROUPS | {"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn is 3; expected an integer from 1 to 2"),
        (GROUPS | {"parallel_attn": False}, "sets new_decoder_architecture without parallel_attn"),
        (MPT | {"no_bias": False}, "sets no_bias to false, which is not supported"),
        (MPT | {"norm_type": "rmsnorm"}, 'norm_type is "rmsnorm"; expected low_precision_layernorm or layernorm'),
        (MPT | {"logit_scale": "inv_sqrt_d_model"}, "sets logit_scale, which is not supported"),
        (MPT | {"attn_config": {"alibi": False}}, "attn_config sets alibi to false, which is not supported"),
        (MPT | {"attn_config": {"qk_ln": True}}, "attn_config sets qk_ln to true, which is not supported"),
        (MPT | {"attn_config": {"prefix_lm": True}}, "attn_config sets prefix_lm to true, which is not supported"),
        (MPT | {"attn_config": {"attn_type": "multiquery_attention"}}, 'attn_type is "multiquery_attention"; expected'),
        (MPT | {"attn_config": {"sliding_window_size": 64}}, "sliding_window_size is 64; expected -1"),
        (MPT | {"attn_config": {"clip_qkv": -1}}, "clip_qkv is -1; expected a number over 0"),
        (MPT | {"ffn_config": {"ffn_type": "mptglu"}}, 'ffn_config: ffn_type is "mptglu"; expected mptmlp'),
    ],
)
def test_a_model_that_cannot_be_run_is_refused_with_a_sentence(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, config)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 12, 14, 16, 32, 71, 112])
def test_slopes_are_those_of_transformers(num_heads: int) -> None:
    reference = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)
    torch.testing.assert_close(torch.tensor(alibi_slopes(num_heads)), reference[:, 0, 1])
    other = modeling_mpt.build_mpt_alibi_tensor(num_heads, 2, alibi_bias_max=16)
    torch.testing.assert_close(torch.tensor(alibi_slopes(num_heads, 16)), -other[:, 0, 0])


@pytest.mark.usefixtures("one_thread")
def test_mpt_has_the_largest_bias_that_it_was_trained_with(tmp_path: Path) -> None:
    reference: Any = save(tmp_path, Case("mpt", {"attn_config": {"alibi_bias_max": 16}}))
    # transformers ignores the key.
    reference.transformer.build_mpt_alibi_tensor = functools.partial(
        modeling_mpt.build_mpt_alibi_tensor, alibi_bias_max=16
    )
    compare(reference, tmp_path)


@pytest.mark.usefixtures("one_thread")
def test_bloom_runs_from_a_checkpoint_without_its_prefix(tmp_path: Path) -> None:
    reference = save(tmp_path, Case("bloom"))
    path = tmp_path / "model.safetensors"
    stored = safetensors.torch.load_file(path)
    renamed = {name.removeprefix("transformer."): tensor.clone() for name, tensor in stored.items()}
    assert "word_embeddings.weight" in renamed
    safetensors.torch.save_file(renamed, path)
    compare(reference, tmp_path)


@pytest.mark.usefixtures("one_thread")
def test_a_tied_output_layer_can_be_stored_too(tmp_path: Path) -> None:
    reference = save(tmp_path, Case("gpt_neox_japanese"))
    path = tmp_path / "model.safetensors"
    stored = safetensors.torch.load_file(path)
    embeddings = stored["gpt_neox_japanese.embed_in.weight"]
    safetensors.torch.save_file(stored | {"embed_out.weight": embeddings.clone()}, path)
    compare(reference, tmp_path)


def compare(reference: transformers.PreTrainedModel, directory: Path) -> None:
    ties = NearTies()
    driver = Driver(make_runner(directory, 8))
    for request in driver.run(Request(list(range(3, 83)), num_outputs=10)):
        ties.check(reference, request.prompt, request.output)
    ties.report()
