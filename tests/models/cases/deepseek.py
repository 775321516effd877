from typing import Any

from tests.models.case import Case

_EXPERTS = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
_V3 = _EXPERTS | _LATENT | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 1.0,
}

CASES = [
    Case(
        "deepseek_v2",
        _EXPERTS | _LATENT | {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy", "mlp_bias": True},
        variant="best groups",
    ),
    Case(
        "deepseek_v2",
        _EXPERTS | _LATENT | {"q_lora_rank": None, "rope_parameters": _YARN, "routed_scaling_factor": 1.5},
        variant="as V2-Lite",
        mechanism="latent attention, with YaRN's factor of scores",
    ),
    Case("deepseek_v3", _V3 | {"rms_norm_eps": 0.05}, mechanism="experts of the best groups, with a bias"),
    Case(
        "deepseek_v3",
        _V3 | {"rope_interleave": False, "attention_bias": True, "norm_topk_prob": False, "rope_parameters": _YARN},
        variant="rotated halves",
    ),
    Case("glm4_moe_lite", _V3 | {"n_group": 1, "topk_group": 1, "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    Case("youtu", _LATENT),
]
