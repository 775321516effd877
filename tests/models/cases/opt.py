from tests.models.case import Case

CASES = [
    Case("opt", {"ffn_dim": 96}),
    Case(
        "opt",
        {"ffn_dim": 96, "do_layer_norm_before": False, "word_embed_proj_dim": 48},
        variant="as opt-350m",
        mechanism="embeddings that are projected, no norm after the last block, an offset of positions",
    ),
    Case("opt", {"ffn_dim": 96, "word_embed_proj_dim": 48, "tie_word_embeddings": False}, variant="a head of its own"),
    Case("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False}, variant="without biases"),
    Case("opt", {"_remove_final_layer_norm": True}, variant="without the last norm"),
    Case("xglm", {"ffn_dim": 96}, mechanism="positions by sinusoids, and scaled embeddings"),
    Case("xglm", {"ffn_dim": 96, "scale_embedding": False, "activation_function": "relu"}, variant="unscaled"),
    Case("biogpt", {"layer_norm_eps": 0.1}),
    Case("biogpt", {"scale_embedding": False, "tie_word_embeddings": False}, variant="a head of its own"),
]
