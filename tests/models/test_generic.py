"""What transformers' code cannot run on pages is refused with a sentence, before a weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.errors import ModelError
from services.worker.implementations import Implementation
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.models.generic.skeleton import Skeleton

ARCEE: dict[str, Any] = {
    "architectures": ["ArceeForCausalLM"],
    "model_type": "arcee",
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def read(directory: Path, config: dict[str, Any], implementation: Implementation = "auto") -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    return read_model_config(directory, implementation)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "layers": (
        ARCEE | {"num_hidden_layers": 10**9},
        "num_hidden_layers is 1000000000; expected an integer from -1 to 512",
    ),
    "vocabulary": (ARCEE | {"vocab_size": 10**12}, "vocab_size is 1000000000000; expected an integer from -1 to"),
    "hidden size": (
        ARCEE | {"hidden_size": "wide"},
        "config.json: transformers refuses this configuration: StrictDataclassFieldValidationError: Validation error "
        "for field 'hidden_size': TypeError: Field 'hidden_size' expected int, got str",
    ),
    "activation": (ARCEE | {"hidden_act": "wow"}, "transformers refuses this configuration: KeyError: 'wow'"),
    "attention of its own": (
        {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_layer": 2, "n_embd": 64, "n_head": 4},
        "the model does not attend through transformers' attention interface",
    ),
    "a mask of its own": (
        ARCEE | {"architectures": ["DogeForCausalLM"], "model_type": "doge"},
        "the model cannot run on paged attention",
    ),
    "an encoder": (
        {"architectures": ["BertLMHeadModel"], "model_type": "bert", "max_position_embeddings": 64},
        "the model has a mask of its own, which is not supported",
    ),
    "positions of its own": (
        {"architectures": ["RobertaForCausalLM"], "model_type": "roberta", "is_decoder": True},
        "positions that begin after the padding token's id are not supported",
    ),
    "recurrent state": (
        ARCEE | {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2"},
        "models with recurrent state are not supported yet",
    ),
    "weights in another layout": (
        ARCEE | {"architectures": ["HrmTextForCausalLM"], "model_type": "hrm_text"},
        "checkpoints store model.L_module.layers.0.mlp.gate_proj.weight together with others, which is not supported",
    ),
    "another model's architecture": (ARCEE | {"architectures": ["MysteryForCausalLM"]}, "`quire models` lists what is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused(case: str, tmp_path: Path) -> None:
    config, sentence = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, config, "transformers")
    assert str(refusal.value).startswith(str(tmp_path))
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_types_that_are_not_proven_run_only_if_asked_for(tmp_path: Path) -> None:
    config = ARCEE | {"architectures": ["HrmTextForCausalLM"], "model_type": "hrm_text"}
    with pytest.raises(ModelError, match="is HrmTextForCausalLM, which is not supported"):
        read(tmp_path, config)


def test_a_rotation_that_depends_on_the_batch_ends_at_the_original_length(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    assert read(tmp_path, ARCEE | {"rope_parameters": rope}).max_model_len == 64


def test_config_json_cannot_choose_the_attention(tmp_path: Path) -> None:
    chosen = {"_attn_implementation": "sdpa", "attn_implementation": "sdpa", "_experts_implementation": "eager"}
    assert len(read(tmp_path, ARCEE | chosen).attention) == 3


def test_quire_computes_experts_with_older_versions_of_transformers_too() -> None:
    """Up to 5.17, transformers did not say whether a module norms the outputs of its experts."""
    olmoe = {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2}
    same = {name: value for name, value in ARCEE.items() if name not in ("architectures", "model_type", "head_dim")}
    skeleton = Skeleton(same | olmoe, "config.json")
    for module in skeleton.model.modules():
        vars(module).pop("has_post_expert_norm", None)
    assert skeleton.try_out().num_chosen == {f"model.layers.{layer}.mlp.experts": 2 for layer in range(3)}
