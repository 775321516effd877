from tests.models.case import Case

CASES = [
    Case("mpt", {"attn_config": {"clip_qkv": 0.7}, "max_seq_len": 256}, mechanism="clipped queries, keys and values"),
    Case(
        "mpt",
        {"hidden_size": 96, "n_heads": 6, "attn_config": {"softmax_scale": 0.3}, "tie_word_embeddings": False},
        variant="6 heads",
    ),
]
