"""config.json of the GPTs: what its keys mean, the defaults of those that it leaves out, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from services.worker.errors import ModelError
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.models.decoders.gpt2 import GPT2Config
from services.worker.models.decoders.gpt_neo import GPTNeoConfig
from services.worker.models.decoders.gpt_neox import GPTNeoXConfig
from services.worker.ops import Activation

ARCHITECTURES = {
    "GPT2LMHeadModel": "gpt2",
    "OpenAIGPTLMHeadModel": "openai-gpt",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTNeoForCausalLM": "gpt_neo",
    "GPTJForCausalLM": "gptj",
    "CodeGenForCausalLM": "codegen",
    "GPTNeoXJapaneseForCausalLM": "gpt_neox_japanese",
    "OPTForCausalLM": "opt",
    "XGLMForCausalLM": "xglm",
    "BioGptForCausalLM": "biogpt",
}


def read(directory: Path, architecture: str, **values: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps({"architectures": [architecture], **values}))
    return read_model_config(directory)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_empty_config_gives_the_parameters_of_transformers(tmp_path: Path, architecture: str) -> None:
    config = transformers.AutoConfig.for_model(ARCHITECTURES[architecture])
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    declaration = read(tmp_path, architecture).declaration
    found = {name: shape for name, shape in declaration.parameters.items() if name not in declaration.matrices}
    for name, matrix in declaration.matrices.items():
        shape = (matrix.outputs, matrix.inputs)
        found[f"{name}.weight"] = shape[::-1] if matrix.is_transposed else shape
    assert found == expected


def test_gelu_is_the_tanh_form_for_gpt_1_alone(tmp_path: Path) -> None:
    first, second = read(tmp_path, "OpenAIGPTLMHeadModel").network, read(tmp_path, "GPT2LMHeadModel").network
    assert isinstance(first, GPT2Config)
    assert isinstance(second, GPT2Config)
    assert first.activation == second.activation == Activation.GELU_TANH
    exact = read(tmp_path, "GPT2LMHeadModel", activation_function="gelu").network
    assert isinstance(exact, GPT2Config)
    assert exact.activation == Activation.GELU


def test_gpt_neox_japanese_rotates_whole_heads(tmp_path: Path) -> None:
    config = read(tmp_path, "GPTNeoXJapaneseForCausalLM").network
    assert isinstance(config, GPTNeoXConfig)
    assert config.rope.rotary_dim == 80


def test_gpt_neos_windows_are_read_by_groups_of_layers(tmp_path: Path) -> None:
    types = [[["global", "local"], 2], [["local"], 1]]
    config = read(tmp_path, "GPTNeoForCausalLM", attention_types=types, num_layers=5, window_size=7).network
    assert isinstance(config, GPTNeoConfig)
    assert config.windows == (None, 7, None, 7, 7)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("GPTJForCausalLM", {"rotary_dim": None}, "rotary_dim is null; expected an integer from 1 to 256"),
    ("GPTJForCausalLM", {"rotary_dim": 63}, "rotary_dim is 63; expected an even number"),
    ("GPTJForCausalLM", {"rotary_dim": 258}, "rotary_dim is 258; expected an integer from 1 to 256"),
    ("GPTJForCausalLM", {"activation_function": "mish"}, "activation_function is mish, which is not supported"),
    ("CodeGenForCausalLM", {"n_head": 2}, "n_head is 2; expected a multiple of 4 for CodeGen"),
    ("CodeGenForCausalLM", {"auto_map": {"AutoModelForCausalLM": "codegen2.py"}}, "names code of its own (auto_map)"),
    ("GPTNeoForCausalLM", {"attention_types": [[["global"], 25]]}, "groups such as [[global, local], 6]"),
    ("GPTNeoForCausalLM", {"attention_types": [[["global"], 23]]}, "groups such as [[global, local], 6]"),
    ("GPTNeoForCausalLM", {"attention_types": [[["dilated"], 24]]}, "groups such as [[global, local], 6]"),
    ("GPTNeoForCausalLM", {"attention_types": [[[[]], 24]]}, "groups such as [[global, local], 6]"),
    ("GPTNeoForCausalLM", {"attention_types": ["global"]}, "groups such as [[global, local], 6]"),
    ("GPTNeoForCausalLM", {"attention_types": 3}, "groups such as [[global, local], 6]"),
    ("GPTBigCodeForCausalLM", {"add_cross_attention": True}, "sets add_cross_attention to true"),
    ("XGLMForCausalLM", {"add_cross_attention": True}, "sets add_cross_attention to true"),
    ("XGLMForCausalLM", {"pad_token_id": 5}, "pad_token_id is 5; expected an integer from 0 to 1"),
    ("XGLMForCausalLM", {"d_model": 1025, "attention_heads": 1}, "d_model is 1025; expected an even number"),
    ("OPTForCausalLM", {"num_attention_heads": 7}, "num_attention_heads is 7; expected a divisor"),
    ("GPTNeoXJapaneseForCausalLM", {"intermediate_multiple_size": 1 << 22}, "intermediate_multiple_size"),
]


@pytest.mark.parametrize(("architecture", "values", "sentence"), REFUSED)
def test_what_the_forward_pass_does_not_cover_is_refused(
    tmp_path: Path, architecture: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(sentence)):
        read(tmp_path, architecture, **values)
