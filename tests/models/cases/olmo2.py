from tests.models.case import Case
from tests.models.tiny import GQA

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

CASES = [
    Case("olmo2", GQA | {"attention_bias": True}, mechanism="norms only after attention and MLP"),
    Case(
        "olmo3",
        GQA
        | {
            "num_hidden_layers": 5,
            "sliding_window": 12,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        mechanism="a norm over all heads of a token, and YaRN in some layers",
    ),
    Case("exaone4", GQA | {"head_dim": 32, "num_hidden_layers": 5, "sliding_window": 10}),
    Case("exaone4", GQA | {"sliding_window": None, "layer_types": ["full_attention"] * 3}, variant="no windows"),
]
