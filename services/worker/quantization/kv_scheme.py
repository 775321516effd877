"""Reads a checkpoint's scheme of KV cache quantization from config.json, and recognizes the names of the cache's scales
among the checkpoint's tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SCALE = re.compile(
    r"\.self_attn\.((attn\.)?(k|v|kv|q|prob)_scale|k_proj\.k_scale|v_proj\.v_scale|q_proj\.q_scale"
    r"|[qkv]_proj\.output_scale|prob_output_scale)$"
)


@dataclass(frozen=True, slots=True)
class KVCacheScheme:
    description: str
    is_supported: bool  # fp8 with one static scale per layer


def read_kv_cache_scheme(settings: Mapping[str, Any]) -> KVCacheScheme | None:
    """Returns the scheme in `settings`, a `quantization_config`; None if it has none. compressed-tensors writes an
    object that describes the numbers, AutoFP8 only the word "static"."""
    scheme = settings.get("kv_cache_scheme")
    if not scheme:
        return None
    if not isinstance(scheme, Mapping):
        return KVCacheScheme(f"scheme {scheme!r}", scheme == "static")
    bits, kind = scheme.get("num_bits", 8), scheme.get("type", "float")
    strategy, dynamic = scheme.get("strategy") or "tensor", bool(scheme.get("dynamic", False))
    symmetric = bool(scheme.get("symmetric", True))
    description = (
        f"{bits} bits ({kind}, {'' if symmetric else 'a'}symmetric), with {'dynamic' if dynamic else 'static'} scales "
        f"by {strategy}"
    )
    is_supported = (bits, kind, strategy, dynamic, symmetric) == (8, "float", "tensor", False, True)
    return KVCacheScheme(description, is_supported)


def is_kv_scale(name: str) -> bool:
    """Returns whether the tensor `name` is a scale of keys, values, queries or attention weights. Scales of keys and
    values are read by `weights/kv_scales.py`; the others are not used, because Quire does not quantize queries
    and attention weights."""
    return _SCALE.search(name) is not None
