"""All decoders by the name that config.json gives to their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.models.decoders import (
    bloom,
    cohere,
    deepseek,
    ernie_moe,
    falcon,
    gemma,
    gemma4,
    glm,
    glm_moe,
    gpt2,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    llama,
    llama4,
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
    **cohere.ARCHITECTURES,
    **deepseek.ARCHITECTURES,
    **ernie_moe.ARCHITECTURES,
    **falcon.ARCHITECTURES,
    **gemma.ARCHITECTURES,
    **gemma4.ARCHITECTURES,
    **glm.ARCHITECTURES,
    **glm_moe.ARCHITECTURES,
    **gpt2.ARCHITECTURES,
    **gpt_neo.ARCHITECTURES,
    **gpt_neox.ARCHITECTURES,
    **gpt_oss.ARCHITECTURES,
    **gptj.ARCHITECTURES,
    **granite.ARCHITECTURES,
    **llama.ARCHITECTURES,
    **llama4.ARCHITECTURES,
    **mpt.ARCHITECTURES,
    **olmo.ARCHITECTURES,
    **olmo2.ARCHITECTURES,
    **opt.ARCHITECTURES,
    **phi.ARCHITECTURES,
    **qwen_moe.ARCHITECTURES,
    **stablelm.ARCHITECTURES,
    **starcoder2.ARCHITECTURES,
}
