"""Reads params.json, the configuration that Mistral's own code (mistral-inference) has in place of config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.worker.errors import ModelError
from services.worker.json_files import read_json

FILE = "params.json"
# Names of the values in config.json. Values of params.json that are left out have the defaults of Mistral's code.
_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
    "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_DEFAULTS = {
    "architectures": ["MistralForCausalLM"],
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 32_768,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
# Values that do not change the forward pass, and the value of others that does not.
_IGNORED = ("max_batch_size", "model_type", "lora")
_NEUTRAL: dict[str, tuple[object, ...]] = {"use_biases": (False,), "causal": (True,), "model_parallel": (1,)}


def read_mistral_params(directory: Path) -> dict[str, Any] | None:
    """Returns the values that config.json would contain; None if there is no params.json. Raises ModelError for a value
    that Quire does not know, such as those of mixtures of experts."""
    path = directory / FILE
    params = read_json(path)
    if params is None:
        return None
    config = dict(_DEFAULTS)
    for name, value in params.items():
        if name in _NAMES:
            config[_NAMES[name]] = value
        elif name not in _IGNORED and value is not None and value not in _NEUTRAL.get(name, ()):
            raise ModelError(
                f"{path} has {name}, which Quire cannot read from Mistral's own format; use a checkpoint of the same "
                "model with a config.json"
            )
    return config
