from typing import Any

from tests.models.case import Case
from tests.models.tiny import GQA, VOCAB_SIZE

_SIZES: dict[str, Any] = GQA | {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 9,
    "num_hidden_layers": 6,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "final_logit_softcapping": 30.0,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
_EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 48,
    "hidden_size_per_layer_input": 0,
}
CASES = [
    Case(
        "gemma4_text",
        _SIZES | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True},
        variant="layers that share keys",
        mechanism="layers that read the keys of earlier ones, and an input of each layer",
    ),
    Case(
        "gemma4_text",
        _SIZES | _EXPERTS | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        variant="experts",
        mechanism="values made of keys, and experts beside an MLP",
    ),
    Case("gemma4_unified_text", _SIZES),
    Case("gemma4", {"text_config": _SIZES}, variant="inside a larger model"),
]
