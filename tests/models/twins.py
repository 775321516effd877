"""Model types that differ from another type in name only, and so do not count as types of their own.

In each pair, transformers' classes of the decoder are the same but for their names. The wrappers of models that take
images or audio are among them: only their language model runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TWINS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gpt-sw3": "gpt2",
    "idefics3": "llama",
    "internlm3": "llama",
    "internvl": "qwen3",
    "iquestcoder": "llama",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "mistral",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_audio": "qwen2",
    "smolvlm": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}


def count_distinct(model_types: Iterable[str]) -> int:
    """Returns the number of types, twins counted once."""
    return len({TWINS.get(name, name) for name in model_types})
