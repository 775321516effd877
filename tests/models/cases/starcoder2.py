from tests.models.case import Case
from tests.models.tiny import GQA

CASES = [
    Case("starcoder2", GQA | {"sliding_window": 11}, mechanism="a window and an MLP without a gate"),
    Case("starcoder2", GQA | {"use_bias": False, "tie_word_embeddings": False}, variant="no biases"),
    Case("nemotron", GQA | {"head_dim": 32}, mechanism="squared ReLU, norms with weights around 1"),
    Case("nemotron", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}, variant="biases"),
]
