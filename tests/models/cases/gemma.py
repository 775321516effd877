from tests.models.case import Case
from tests.models.tiny import GQA

CASES = [
    Case("gemma", GQA | {"head_dim": 32}),
    Case(
        "gemma2",
        GQA | {"head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 20},
        mechanism="windows in some layers, and capped scores",
    ),
    Case(
        "gemma3_text",
        GQA | {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 7},
        mechanism="a rotation per type of layer",
    ),
]
