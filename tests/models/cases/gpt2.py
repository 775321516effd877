from tests.models.case import Case

CASES = [
    Case("gpt2", mechanism="learned positions"),
    Case(
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"},
        variant="scores by layer",
    ),
]
