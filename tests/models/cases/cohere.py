from tests.models.case import Case
from tests.models.tiny import GQA

CASES = [
    Case("cohere", GQA | {"attention_bias": True}),
    Case(
        "cohere",
        GQA | {"use_qk_norm": True, "tie_word_embeddings": False, "logit_scale": 0.5},
        variant="norms of queries and keys",
        mechanism="norms of heads, stored as one matrix",
    ),
    Case(
        "cohere2",
        GQA | {"num_hidden_layers": 5, "sliding_window": 13},
        mechanism="layers without positions, and rotated pairs of neighbours",
    ),
]
