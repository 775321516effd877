"""The types of language models that `text_config` names, inside models that take images or audio, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.worker.models.decoders.registry import DECODERS
from services.worker.models.generic import PROVEN


@dataclass(frozen=True, slots=True)
class TextModel:
    """A type of language model, as `text_config` names it."""

    architecture: str
    # Values of keys that `text_config` leaves out. transformers does not write the defaults of its configuration class.
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, positions: int, **others: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        **others,
    }


_QWEN2_VL = _sizes(
    152_064, 8192, 29_568, 80, 64, 32_768, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6,
    max_window_layers=80,
)  # fmt: skip
_QWEN3 = _sizes(151_936, 4096, 22_016, 32, 32, 32_768, num_key_value_heads=32)
_QWEN3_VL_MOE = _sizes(
    151_936, 2048, 5632, 24, 16, 128_000, num_key_value_heads=16, rope_theta=5e5, num_experts_per_tok=4,
    moe_intermediate_size=1408,
)  # fmt: skip
_QWEN2_5_OMNI = _sizes(152_064, 3584, 18_944, 28, 28, 32_768, num_key_value_heads=4, rope_theta=1e6)
_QWEN3_OMNI_MOE = _sizes(
    3584, 2048, 18_944, 28, 28, 32_768, num_key_value_heads=4, rope_theta=1e6, num_experts=128, num_experts_per_tok=8,
    moe_intermediate_size=768, norm_topk_prob=True,
)  # fmt: skip
_GLM4V = _sizes(
    151_552, 4096, 13_696, 40, 32, 32_768, num_key_value_heads=2, rms_norm_eps=1e-5, attention_bias=True,
    partial_rotary_factor=1.0,
)  # fmt: skip
_GLM4V_MOE = _sizes(
    151_424, 4096, 10_944, 46, 96, 65_536, num_key_value_heads=8, rms_norm_eps=1e-5, attention_bias=True,
    moe_intermediate_size=1408,
)  # fmt: skip
TEXT_MODELS: Mapping[str, TextModel] = {
    "llama": TextModel("LlamaForCausalLM", _sizes(32_000, 4096, 11_008, 32, 32, 2048)),
    "mistral": TextModel("MistralForCausalLM", _sizes(32_000, 4096, 14_336, 32, 32, 131_072, num_key_value_heads=8)),
    "qwen2": TextModel("Qwen2ForCausalLM", _sizes(151_936, 4096, 22_016, 32, 32, 32_768, num_key_value_heads=32)),
    "qwen3": TextModel("Qwen3ForCausalLM", _QWEN3),
    "qwen2_vl_text": TextModel("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen2_5_vl_text": TextModel("Qwen2ForCausalLM", _QWEN2_VL),
    "qwen3_vl_text": TextModel("Qwen3ForCausalLM", {**_QWEN3, "max_position_embeddings": 128_000, "rope_theta": 5e5}),
    "qwen3_vl_moe_text": TextModel("Qwen3VLMoeTextModel", _QWEN3_VL_MOE),
    "qwen2_5_omni_text": TextModel("Qwen2ForCausalLM", _QWEN2_5_OMNI),
    "qwen3_omni_moe_text": TextModel("Qwen3MoeForCausalLM", _QWEN3_OMNI_MOE),
    "glm4v_text": TextModel("Glm4ForCausalLM", _GLM4V),
    "glm4v_moe_text": TextModel("Glm4MoeForCausalLM", _GLM4V_MOE),
    "kimi_k2": TextModel("DeepseekV3ForCausalLM"),
    "gemma3_text": TextModel("Gemma3ForCausalLM", _sizes(262_208, 2304, 9216, 26, 8, 131_072, num_key_value_heads=4)),
}


def find_text_model(kind: str) -> TextModel | None:
    """Returns the language model of a type; None for a type that is not supported. `kind`: transformers' name of it."""
    if kind in TEXT_MODELS:
        return TEXT_MODELS[kind]
    # The name of a class has the letters of its type.
    letters = kind.removesuffix("_text").replace("_", "")
    names = [name for name in DECODERS if name.removesuffix("ForCausalLM").lower() == letters]
    names += [PROVEN[kind]] if kind in PROVEN else []
    return next((TextModel(name) for name in names), None)
