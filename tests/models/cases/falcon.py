from tests.models.case import Case

GROUPS = {"new_decoder_architecture": True, "num_kv_heads": 2}
CASES = [
    Case("falcon", mechanism="one norm for attention and MLP"),
    Case("falcon", {"multi_query": False, "bias": True}, variant="a KV head for each head"),
    Case("falcon", GROUPS, variant="two norms", mechanism="query heads stored with their key and value"),
    Case("falcon", GROUPS | {"num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}, variant="one norm"),
    Case("falcon", {"parallel_attn": False, "ffn_hidden_size": 80}, variant="one after the other"),
    Case(
        "falcon",
        {
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "hidden_size": 96,
            "num_attention_heads": 6,
        },
        variant="ALiBi",
        attention="sdpa",  # transformers' eager attention adds the biases twice
    ),
]
