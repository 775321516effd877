"""Models of known shapes with random weights. Their speed does not depend on the values of the weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TOKENIZER = Path(__file__).parents[1] / "quire" / "models" / "quire-chat"


@dataclass(frozen=True, slots=True)
class Shape:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    max_model_len: int
    tie_word_embeddings: bool = True
    rope_theta: float = 10000.0
    dtype: str = "float32"
    quantization_config: Mapping[str, Any] | None = None

    def write(self, folder: Path) -> list[str]:
        """Writes a model directory. Returns the worker's arguments for it."""
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "rope_theta": self.rope_theta, "tie_word_embeddings": self.tie_word_embeddings, "bos_token_id": 0,
            "eos_token_id": 2,
            "vocab_size": self.vocab_size, "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size, "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads, "num_key_value_heads": self.num_kv_heads,
            "max_position_embeddings": self.max_model_len, "torch_dtype": self.dtype,
        }  # fmt: skip
        if self.quantization_config is not None:
            config["quantization_config"] = dict(self.quantization_config)
        return write_model(folder, config)


def write_model(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """Writes a model directory with this config.json and a tokenizer. Returns the worker's arguments for it."""
    for path in _TOKENIZER.glob("tokenizer*.json"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(config))
    return [str(folder), "--load-format", "dummy"]


# The shape of SmolLM2-135M.
M135 = Shape(49_152, 576, 1536, 30, 9, 3, 4096)
M15 = Shape(8192, 288, 768, 6, 6, 2, 32_768)
# The shape of Llama-3.2-1B.
B1 = Shape(128_256, 2048, 8192, 16, 32, 8, 4096)
