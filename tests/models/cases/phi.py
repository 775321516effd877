from tests.models.case import Case
from tests.models.tiny import GQA

CASES = [
    Case("phi"),
    Case(
        "phi",
        GQA | {"qk_layernorm": True, "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.375}},
        variant="norms of queries and keys",
        mechanism="a bias of the head",
    ),
]
