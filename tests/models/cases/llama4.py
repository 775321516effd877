from typing import Any

from tests.models.case import Case
from tests.models.tiny import GQA

_SIZES: dict[str, Any] = GQA | {
    "head_dim": 16,
    "num_hidden_layers": 5,
    "attention_chunk_size": 16,
    "intermediate_size_mlp": 80,
    "num_local_experts": 6,
    "no_rope_layer_interval": 2,
    "floor_scale": 8,
    "attn_scale": 0.5,
}
CASES = [
    Case("llama4_text", _SIZES, mechanism="chunks of a sequence, and layers without positions"),
    Case(
        "llama4_text",
        _SIZES | {"num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "use_qk_norm": False},
        variant="experts in every other layer",
    ),
    Case(
        "llama4",
        {"text_config": _SIZES, "vision_config": {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}},
        variant="inside a larger model",
    ),
]
