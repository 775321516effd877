from tests.models.case import Case
from tests.models.tiny import EXPERTS, GQA

CASES = [
    Case("mixtral", GQA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20}),
    Case(
        "qwen2_moe",
        GQA | EXPERTS | {"shared_expert_intermediate_size": 40, "decoder_sparse_step": 2},
        mechanism="experts beside a shared one",
    ),
    Case("qwen3_moe", GQA | EXPERTS | {"head_dim": 32, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    Case(
        "qwen3_moe",
        GQA | EXPERTS | {"use_sliding_window": True, "sliding_window": 9},
        variant="windows",
    ),
]
