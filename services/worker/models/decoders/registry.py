"""All decoders by the name that config.json gives to their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.models.decoders import gemma, gpt2, gpt_neox, gpt_oss, llama, qwen_moe
from services.worker.models.network import Architecture

DECODERS: Mapping[str, Architecture[Any]] = {
    **gemma.ARCHITECTURES,
    **gpt2.ARCHITECTURES,
    **gpt_neox.ARCHITECTURES,
    **gpt_oss.ARCHITECTURES,
    **llama.ARCHITECTURES,
    **qwen_moe.ARCHITECTURES,
}
