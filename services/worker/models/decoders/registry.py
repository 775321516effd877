"""All decoders by the name that config.json gives to their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.models.decoders import (
    bloom,
    cohere,
    falcon,
    gemma,
    glm,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    granite,
    llama,
    mpt,
    olmo,
    olmo2,
    opt,
    phi,
    qwen_moe,
    stablelm,
    starcoder2,
)
from services.worker.models.network import Architecture

DECODERS: Mapping[str, Architecture[Any]] = {
    **bloom.ARCHITECTURES,
    **falcon.ARCHITECTURES,
    **cohere.ARCHITECTURES,
    **gemma.ARCHITECTURES,
    **glm.ARCHITECTURES,
    **gpt2.ARCHITECTURES,
    **gpt_neo.ARCHITECTURES,
    **gpt_neox.ARCHITECTURES,
    **gptj.ARCHITECTURES,
    **llama.ARCHITECTURES,
    **mpt.ARCHITECTURES,
    **opt.ARCHITECTURES,
    **granite.ARCHITECTURES,
    **olmo.ARCHITECTURES,
    **olmo2.ARCHITECTURES,
    **phi.ARCHITECTURES,
    **qwen_moe.ARCHITECTURES,
    **stablelm.ARCHITECTURES,
    **starcoder2.ARCHITECTURES,
}
