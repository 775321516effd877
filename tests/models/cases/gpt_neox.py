from tests.models.case import Case

CASES = [
    Case("gpt_neox", mechanism="attention and MLP side by side"),
    Case("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}, variant="one after the other"),
]
