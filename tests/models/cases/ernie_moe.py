from tests.models.case import Case
from tests.models.tiny import GQA

_EXPERTS = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 48}

CASES = [
    Case("ernie4_5_moe", GQA | _EXPERTS | {"head_dim": 24}),
    Case(
        "ernie4_5_moe",
        GQA | _EXPERTS | {"moe_num_shared_experts": 0, "moe_layer_start_index": 0, "moe_layer_interval": 2},
        variant="without shared experts",
    ),
]
