from tests.models.case import Case
from tests.models.tiny import GQA

CASES = [
    Case("stablelm", GQA | {"use_qkv_bias": True}),
    Case(
        "stablelm",
        GQA | {"use_parallel_residual": True, "qk_layernorm": True},
        variant="side by side",
        mechanism="a norm of its own for each head",
    ),
]
