from tests.models.case import Case
from tests.models.tiny import GQA

_SIZES = GQA | {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
}

CASES = [
    Case("glm4_moe", _SIZES | {"use_qk_norm": True, "attention_bias": True, "head_dim": 24}),
    Case(
        "dots1",
        _SIZES | {"sliding_window": 9, "max_window_layers": 2, "n_group": 4, "topk_group": 2, "attention_bias": True},
    ),
    Case("solar_open", _SIZES | {"head_dim": 24, "norm_topk_prob": False, "routed_scaling_factor": 1.5}),
]
