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
    _audio("voxtral", {"model_type": "llama"}),
    _audio("qwen2_audio", {"model_type": "qwen2"}),
]
