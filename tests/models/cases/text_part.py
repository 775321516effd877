"""The text of models that take images or audio, too."""

from typing import Any

from tests.models.case import Case
from tests.models.tiny import EXPERTS, GQA

_CLIP: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
_AUDIO: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
}
_QWEN: dict[str, Any] = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
_MROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
_SIGLIP = {name: value for name, value in _CLIP.items() if name != "intermediate_size"}
_GLM: dict[str, Any] = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
_GLM_ROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 2],
}
_LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
# The scale of queries changes after the original length.
_MINISTRAL3: dict[str, Any] = {
    "model_type": "ministral3",
    "head_dim": 16,
    "sliding_window": None,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "llama_4_scaling_beta": 0.1,
    },
}
_CONFORMER: dict[str, Any] = {"num_layers": 1, "hidden_dim": 32, "num_heads": 2, "dim_head": 16}


def _omni(model_type: str, text: dict[str, Any]) -> Case:
    vision = _QWEN | {"fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}
    return Case(model_type, {"text_config": GQA | text, "vision_config": vision, "audio_config": _AUDIO})


def _images(model_type: str, text: dict[str, Any], vision: dict[str, Any] = _CLIP, **others: Any) -> Case:
    return Case(model_type, {"text_config": GQA | text, "vision_config": vision}, **others)


def _audio(model_type: str, text: dict[str, Any]) -> Case:
    return Case(model_type, {"text_config": GQA | text, "audio_config": _AUDIO})


CASES = [
    _images("llava", {"model_type": "llama"}, mechanism="a language model inside a larger model"),
    _images("llava_next", {"model_type": "mistral", "sliding_window": 20}),
    _images("llava_onevision", {"model_type": "qwen2", "tie_word_embeddings": True}),
    _images("vipllava", {"model_type": "llama"}, _CLIP | {"num_hidden_layers": 12}),
    _images("mistral3", {"model_type": "mistral", "head_dim": 32, "sliding_window": None}),
    _images(
        "internvl", {"model_type": "qwen3", "head_dim": 32}, _CLIP | {"image_size": [16, 16], "patch_size": [8, 8]}
    ),
    _images("gemma3", {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 7}),
    _images("idefics3", {"model_type": "llama"}),
    _images("smolvlm", {"model_type": "llama"}),
    _images("qwen2_vl", {"rope_parameters": _MROPE}, {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}),
    _images("qwen2_5_vl", {"rope_parameters": _MROPE}, _QWEN | {"fullatt_block_indexes": [0]}),
    _images(
        "qwen3_vl",
        {"head_dim": 16, "rope_parameters": _MROPE | {"mrope_interleaved": True}},
        _QWEN | {"deepstack_visual_indexes": [0]},
    ),
    _images(
        "qwen3_vl_moe",
        EXPERTS | {"head_dim": 16, "rope_parameters": _MROPE | {"mrope_interleaved": True}, "mlp_only_layers": [1]},
        _QWEN | {"deepstack_visual_indexes": [0]},
        mechanism="experts that one tensor stores",
    ),
    # transformers leaves the factor of the logits out, by mistake: the language model was trained with it.
    _images("aya_vision", {"model_type": "cohere2", "sliding_window": 9, "logit_scale": 1.0}),
    _images("cohere2_vision", {"model_type": "cohere2", "sliding_window": 9, "logit_scale": 1.0}),
    _images(
        "aria", EXPERTS | {"moe_num_experts": 4, "moe_topk": 2, "head_dim": 16}, mechanism="text by transformers' code"
    ),
    _images("deepseek_vl", {"model_type": "llama"}, _SIGLIP),
    _images("exaone4_5", {"model_type": "exaone4", "sliding_window": 9}, _QWEN | {"fullatt_block_indexes": [0]}),
    _images("glm4v", {"head_dim": 16, "rope_parameters": _GLM_ROPE}, _GLM),
    _images("glm46v", {"head_dim": 16, "rope_parameters": _GLM_ROPE}, _GLM),
    _images(
        "glm4v_moe",
        {
            "head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "rope_parameters": _GLM_ROPE,
        },
        _GLM,
    ),
    _images("idefics2", {"model_type": "mistral", "sliding_window": 9}),
    _images("janus", {"model_type": "llama"}, _SIGLIP),
    _images(
        "kimi_k25",
        _LATENT,
        {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2},
    ),
    _images("llava_next_video", {"model_type": "llama"}),
    _images("mistral3", _MINISTRAL3, variant="Ministral 3"),
    _images("ovis2", {"model_type": "qwen2"}, _CLIP | {"num_visual_indicator_tokens": 5, "vocab_size": 64}),
    _images("video_llama_3", {"model_type": "qwen2"}),
    _images("video_llava", {"model_type": "llama"}),
    Case("granite_speech", {"text_config": GQA | {"model_type": "granite"}, "encoder_config": _CONFORMER}),
    _omni("qwen2_5_omni_thinker", {"rope_parameters": _MROPE}),
    _omni(
        "qwen3_omni_moe_thinker", EXPERTS | {"head_dim": 16, "rope_parameters": _MROPE | {"mrope_interleaved": True}}
    ),
    _audio("voxtral", {"model_type": "llama"}),
    _audio("qwen2_audio", {"model_type": "qwen2"}),
]
