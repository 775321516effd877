from tests.models.case import Case

CASES = [
    Case(
        "bloom",
        {"hidden_size": 96, "num_attention_heads": 6},  # no power of two: ALiBi's slopes come from two sequences
        mechanism="ALiBi",
    ),
    Case("bloom", {"apply_residual_connection_post_layernorm": True}, variant="residuals from norms"),
]
