"""Decoders that transformers' own code computes, on Quire's pages."""

from typing import Any

from tests.models.case import Case
from tests.models.tiny import GQA

LAYERS = {"num_hidden_layers": 4}
DENSE = GQA | LAYERS
HEADS = DENSE | {"head_dim": 16}
WINDOW = {"sliding_window": 5}
CHOSEN = {"num_experts_per_tok": 2}
MOE = {"num_experts": 4} | CHOSEN
LOCAL_MOE = {"num_local_experts": 4} | CHOSEN
ROUTED_MOE = {"n_routed_experts": 4, "moe_intermediate_size": 48} | CHOSEN
SMALL_EXPERTS = {"moe_intermediate_size": 48}
LATENT = LAYERS | {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
# What CI runs, and why.
MECHANISMS = {
    "llama": "transformers' code on pages",
    "granite": "scaled logits of the model's own",
    "mimo_v2_flash": "heads that differ by layer, with sinks",
    "olmoe": "transformers' routing before Quire's experts",
    "youtu": "values narrower than keys",
    "diffllama": "two calls of the attention in a layer",
}


def _cases(options: dict[str, Any], *model_types: str) -> list[Case]:
    return [
        Case(
            name,
            options,
            variant="transformers' code",
            mechanism=MECHANISMS.get(name, ""),
            implementation="transformers",
        )
        for name in model_types
    ]


CASES = [
    *_cases(HEADS, "arcee", "aria_text", "diffllama", "ernie4_5", "gemma", "glm", "glm4", "helium"),
    *_cases(HEADS, "hunyuan_v1_dense", "hyperclovax", "internlm3", "iquestcoder", "jais2", "llama"),
    *_cases(HEADS, "nemotron", "seed_oss"),
    *_cases(DENSE, "apertus", "bitnet", "cohere", "gpt_bigcode", "granite", "nanochat", "olmo", "olmo2", "phi"),
    *_cases(DENSE, "stablelm"),
    *_cases(LAYERS | {"is_decoder": True}, "bert", "bert-generation", "electra", "ernie", "roc_bert"),
    *_cases(LAYERS, "biogpt", "gpt-sw3", "gpt2", "gpt_neox", "persimmon", "ctrl"),
    *_cases(HEADS | WINDOW, "cohere2", "cwm", "gemma2", "ministral", "ministral3", "mistral", "moshi", "vaultgemma"),
    *_cases(HEADS | WINDOW | {"num_hidden_layers": 7}, "gemma3_text"),
    *_cases(HEADS | WINDOW | {"layer_types": ["sliding_attention", "full_attention"] * 2}, "beam"),
    *_cases(DENSE | WINDOW, "exaone4", "granite_swa", "olmo3", "phi3", "smollm3", "starcoder2"),
    *_cases(DENSE | WINDOW | {"max_window_layers": 2, "use_sliding_window": True}, "qwen2", "qwen3"),
    *_cases(LAYERS | {"local_attention": 6}, "modernbert-decoder"),
    *_cases(HEADS | MOE, "hunyuan_v1_moe"),
    *_cases(HEADS | LOCAL_MOE, "minimax_m2", "minimax_m3_vl_text"),
    *_cases(HEADS | MOE | SMALL_EXPERTS, "hy_v3"),
    *_cases(HEADS | WINDOW | MOE, "cohere2_moe"),
    *_cases(HEADS | WINDOW | MOE | SMALL_EXPERTS, "afmoe", "flint", "kolibri1"),
    *_cases(HEADS | WINDOW | LOCAL_MOE, "gpt_oss", "mixtral"),
    *_cases(HEADS | ROUTED_MOE, "solar_open"),
    *_cases(DENSE | MOE, "flex_olmo", "olmoe"),
    *_cases(DENSE | MOE | SMALL_EXPERTS, "ernie4_5_moe"),
    *_cases(DENSE | LOCAL_MOE, "granitemoe", "granitemoeshared"),
    *_cases(DENSE | WINDOW | LOCAL_MOE, "granitemoe_swa", "phimoe"),
    *_cases(DENSE | WINDOW | MOE | SMALL_EXPERTS, "exaone_moe", "laguna", "mellum", "qwen3_moe"),
    *_cases(DENSE | WINDOW | MOE | SMALL_EXPERTS | {"max_window_layers": 2}, "qwen2_moe"),
    *_cases(DENSE | WINDOW | ROUTED_MOE, "mimo_v2_flash"),
    *_cases(DENSE | ROUTED_MOE, "glm4_moe"),
    *_cases(DENSE | WINDOW | ROUTED_MOE | {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}, "dots1"),
    *_cases(LATENT, "minicpm3", "youtu"),
    *_cases(LATENT | MOE | ROUTED_MOE, "deepseek_v2"),
    *_cases(LATENT | ROUTED_MOE, "glm4_moe_lite"),
    *_cases(LATENT | ROUTED_MOE | {"n_group": 1, "topk_group": 1}, "axk1"),
    *_cases(LATENT | ROUTED_MOE | {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}, "deepseek_v3"),
]
