from tests.models.case import Case

CASES = [
    Case("gpt_neox", mechanism="attention and MLP side by side"),
    Case("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}, variant="one after the other"),
    Case("gpt_neox_japanese", mechanism="a bias after the last layer's attention"),
    Case(
        "gpt_neox_japanese",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
            "intermediate_multiple_size": 2,
            "tie_word_embeddings": False,
        },
        variant="rotary positions on a part of each head",
    ),
]
