from tests.models.case import Case
from tests.models.tiny import GQA

CASES = [
    Case("glm", GQA | {"head_dim": 32}),
    Case("glm", GQA | {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True}, variant="no biases"),
    Case(
        "glm4",
        GQA | {"head_dim": 16},
        mechanism="norms before and after, rotated neighbours in a part of each head",
    ),
]
