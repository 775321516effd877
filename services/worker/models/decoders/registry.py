"""All decoders by the name that config.json gives to their architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.worker.models.decoders import (
    bloom,
    falcon,
    gemma,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    llama,
    mpt,
    opt,
    qwen_moe,
)
from services.worker.models.network import Architecture

DECODERS: Mapping[str, Architecture[Any]] = {
    **bloom.ARCHITECTURES,
    **falcon.ARCHITECTURES,
    **gemma.ARCHITECTURES,
    **gpt2.ARCHITECTURES,
    **gpt_neo.ARCHITECTURES,
    **gpt_neox.ARCHITECTURES,
    **gptj.ARCHITECTURES,
    **llama.ARCHITECTURES,
    **mpt.ARCHITECTURES,
    **opt.ARCHITECTURES,
    **qwen_moe.ARCHITECTURES,
}
