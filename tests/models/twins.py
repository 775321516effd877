"""Model types that differ from another type in name only, and so do not count as types of their own.

In each pair, transformers' classes of the decoder are the same but for their names. The wrappers of models that take
images or audio are among them: only their language model runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TWINS: Mapping[str, str] = {
    "aria": "aria_text",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "ernie": "bert",
    "exaone4_5": "exaone4",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v",
    "gpt-sw3": "gpt2",
    "granite_speech": "granite",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internlm3": "llama",
    "internvl": "qwen3",
    "iquestcoder": "llama",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "mistral",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "ovis2": "qwen2",
    "qwen2_5_omni_thinker": "qwen2_vl",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_audio": "qwen2",
    "qwen3_omni_moe_thinker": "qwen3_vl_moe",
    "smolvlm": "llama",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}


def count_distinct(model_types: Iterable[str]) -> int:
    """Returns the number of types, twins counted once."""
    return len({TWINS.get(name, name) for name in model_types})
