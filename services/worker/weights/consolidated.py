"""The layout of checkpoints for Mistral's own code (mistral-inference): consolidated*.safetensors.

Names are Mistral's, and rotary embeddings rotate neighbouring dimensions of a head (2 j, 2 j + 1). transformers, and so
Quire, rotates the dimensions (j, j + head_dim / 2). So rows of queries and keys are reordered as they are read.
"""

from __future__ import annotations

import re

from torch import Tensor

INDEX = "consolidated.safetensors.index.json"
SINGLE_FILE = "consolidated.safetensors"
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_NAMES = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_NAMES_IN_LAYER = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def transformers_name(name: str) -> str:
    """Returns transformers' name of a tensor; `name` itself for a tensor that Mistral's dense models do not have."""
    layer, _, suffix = name.rpartition(".")
    if found := _LAYER.fullmatch(layer):
        own = _NAMES_IN_LAYER.get(found[2])
        return name if own is None else f"model.layers.{found[1]}.{own}.{suffix}"
    return f"{_NAMES[layer]}.{suffix}" if layer in _NAMES else name


def rotated_by_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Reorders the rows of queries or keys, [heads · head_dim, hidden], from neighbours to halves of each head."""
    rows, columns = weight.shape
    return weight.view(-1, head_dim // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
