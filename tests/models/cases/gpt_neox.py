from tests.models.case import Case

CASES = [
    Case("gpt_neox", mechanism="attention and MLP side by side"),
    Case("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}, variant="one after the other"),
    Case("gpt_neox_japanese", {"intermediate_multiple_size": 2}, mechanism="a bias in the last layer only"),
    Case(
        "gpt_neox_japanese",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        variant="partial rotation",
    ),
]
