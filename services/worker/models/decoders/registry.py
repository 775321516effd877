"""All decoders by the name that config.json gives to their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.models.decoders import gemma, gemma4, gpt2, gpt_neox, llama, llama4, qwen_moe
from services.worker.models.network import Architecture

DECODERS: Mapping[str, Architecture[Any]] = {
    **gemma.ARCHITECTURES,
    **gemma4.ARCHITECTURES,
    **gpt2.ARCHITECTURES,
    **gpt_neox.ARCHITECTURES,
    **llama.ARCHITECTURES,
    **llama4.ARCHITECTURES,
    **qwen_moe.ARCHITECTURES,
}
