from tests.models.case import Case

CASES = [
    Case("gpt2", mechanism="learned positions"),
    Case(
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"},
        variant="scores by layer",
    ),
    Case("gpt2", {"scale_attn_weights": False, "n_inner": 96, "tie_word_embeddings": False}, variant="scores unscaled"),
    Case("openai-gpt", mechanism="norms after attention and MLP"),
    Case("openai-gpt", {"afn": "relu"}, variant="relu"),
    Case("gpt_bigcode", mechanism="one head of keys and values"),
    Case("gpt_bigcode", {"multi_query": False, "scale_attn_weights": False}, variant="queries, keys, values by head"),
]
