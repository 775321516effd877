from tests.models.case import Case
from tests.models.tiny import GQA

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
OPTIONS = GQA | {"head_dim": 16, "sliding_window": 9, "num_local_experts": 5, "num_experts_per_tok": 2}

CASES = [
    Case(
        "gpt_oss",
        OPTIONS | {"rope_parameters": YARN},
        mechanism="sinks, and experts that one tensor stores, with biases",
    ),
    Case(
        "gpt_oss", OPTIONS | {"layer_types": ["full_attention"] * 3, "attention_bias": False}, variant="all layers full"
    ),
]
