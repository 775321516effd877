"""What the config.json of Mixtral and of Qwen's mixtures of experts means where it leaves keys out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from services.worker.errors import ModelError
from services.worker.fields import Fields
from services.worker.models.config import ModelConfig, parse_model_config

NAMES = {"MixtralForCausalLM": "mixtral", "Qwen2MoeForCausalLM": "qwen2_moe", "Qwen3MoeForCausalLM": "qwen3_moe"}


def read(architecture: str, **values: Any) -> ModelConfig:
    return parse_model_config(Path("model"), Fields(values | {"architectures": [architecture]}, "config.json"), {})


@pytest.mark.parametrize("architecture", NAMES)
def test_an_empty_config_is_that_of_transformers(architecture: str) -> None:
    reference: Any = transformers.AutoConfig.for_model(NAMES[architecture])
    assert read(architecture).network == read(architecture, **reference.to_dict()).network


def test_qwen2_alternates_windows_in_the_layers_before_max_window_layers() -> None:
    values: dict[str, Any] = {"use_sliding_window": True, "num_hidden_layers": 6, "max_window_layers": 4}
    reference: Any = transformers.AutoConfig.for_model("qwen2_moe", **values)
    network: Any = read("Qwen2MoeForCausalLM", **values).network
    assert network.windows == (4096, None, 4096, None, None, None)
    assert network == read("Qwen2MoeForCausalLM", **reference.to_dict()).network


def test_qwen3_has_windows_in_all_layers_or_in_none() -> None:
    values: dict[str, Any] = {"num_hidden_layers": 3, "max_window_layers": 2, "sliding_window": 64}
    on: Any = read("Qwen3MoeForCausalLM", use_sliding_window=True, **values).network
    off: Any = read("Qwen3MoeForCausalLM", **values).network
    assert (on.windows, off.windows) == ((64, 64, 64), (None, None, None))


def test_layers_without_experts_are_a_list() -> None:
    with pytest.raises(ModelError, match='mlp_only_layers is "first"; expected a list of layers'):
        read("Qwen3MoeForCausalLM", mlp_only_layers="first")
    network: Any = read("Qwen3MoeForCausalLM", num_hidden_layers=4, mlp_only_layers=[0, 2, 2, 9]).network
    assert network.has_experts == (False, True, False, True)
