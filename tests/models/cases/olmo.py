from tests.models.case import Case
from tests.models.tiny import GQA

CASES = [
    Case("olmo", GQA | {"clip_qkv": 0.8}, mechanism="limits to queries, keys and values"),
    Case("olmo", {"attention_bias": True, "tie_word_embeddings": True}, variant="biases"),
]
