"""All decoders by the name that config.json gives to their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.models.decoders import (
    cohere,
    gemma,
    glm,
    gpt2,
    gpt_neox,
    granite,
    llama,
    olmo,
    olmo2,
    phi,
    qwen_moe,
    stablelm,
    starcoder2,
)
from services.worker.models.network import Architecture

DECODERS: Mapping[str, Architecture[Any]] = {
    **cohere.ARCHITECTURES,
    **gemma.ARCHITECTURES,
    **glm.ARCHITECTURES,
    **gpt2.ARCHITECTURES,
    **gpt_neox.ARCHITECTURES,
    **granite.ARCHITECTURES,
    **llama.ARCHITECTURES,
    **olmo.ARCHITECTURES,
    **olmo2.ARCHITECTURES,
    **phi.ARCHITECTURES,
    **qwen_moe.ARCHITECTURES,
    **stablelm.ARCHITECTURES,
    **starcoder2.ARCHITECTURES,
}
