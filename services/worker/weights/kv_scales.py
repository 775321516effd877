"""Scales of an fp8 KV cache, as checkpoints store them: one for keys and one for values per layer.

Pages hold k / k_scale and v / v_scale, and attention multiplies them by the scales again. The name of a scale depends
on the tool that wrote the checkpoint: `k_scale` (llm-compressor and AutoFP8), `k_proj.k_scale` (ModelOpt),
`k_proj.output_scale` (raw compressed-tensors and Quark). Old checkpoints have one scale for both, `kv_scale`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from services.worker.errors import ModelError
from services.worker.models import ModelConfig
from services.worker.weights.safetensors_source import CheckpointFiles

logger = logging.getLogger(__name__)

_MAX_NAMED = 5  # layers named in one log line
_OF_BOTH = ("kv_scale", "attn.kv_scale")


@dataclass(frozen=True, slots=True)
class KVScales:
    """Scales of one layer."""

    key: float = 1.0
    value: float = 1.0


def read_kv_scales(path: Path, config: ModelConfig, load_format: str) -> list[KVScales]:
    """Returns each layer's scales for a KV cache in fp8. Scales that the checkpoint at `path` lacks are 1, with a
    warning. Raises ModelError if a scale is not one positive number, or if the checkpoint asks for another kind of
    quantized KV cache."""
    layers = range(len(config.attention))
    scheme = None if config.quantization is None else config.quantization.kv_cache
    if scheme is not None and not scheme.is_supported:
        raise ModelError(
            f"--kv-cache-dtype is fp8, but {path} is made for a KV cache of {scheme.description}; only fp8 with one "
            "static scale per layer is supported: leave --kv-cache-dtype at auto"
        )
    if path.suffix == ".gguf" or load_format == "dummy":
        found: list[KVScales | None] = [None for _ in layers]
    else:
        files = CheckpointFiles(path, torch.device("cpu"), config.kind.base, config.own_name)
        found = [_of_layer(files, f"model.layers.{index}.self_attn") for index in layers]
    missing = [index for index, scales in enumerate(found) if scales is None]
    if missing:
        logger.warning(
            "the KV cache is in fp8 with scale 1.0 in %s: the checkpoint has no k_scale and v_scale for them, and this "
            "can cost accuracy",
            _describe(missing, len(found)),
        )
    else:
        logger.info("the KV cache is in fp8 with the checkpoint's scales")
    return [KVScales() if scales is None else scales for scales in found]


def _describe(missing: Sequence[int], num_layers: int) -> str:
    if len(missing) == num_layers:
        return "all layers"
    names = ", ".join(map(str, missing[:_MAX_NAMED])) + (", …" if len(missing) > _MAX_NAMED else "")
    return f"{len(missing)} of {num_layers} layers ({names})"


def _of_layer(files: CheckpointFiles, attention: str) -> KVScales | None:
    """Returns the scales of one layer; None if the checkpoint has none for the layer. `attention`: name of the layer's
    attention module. If there is only one scale, it is used for keys and values, as in vLLM.
    """
    key, value = (_read(files, attention, _names(kind)) for kind in "kv")
    both = _read(files, attention, _OF_BOTH)
    key, value = key or both, value or both
    if key is None and value is None:
        return None
    return KVScales(key or value or 1.0, value or key or 1.0)


def _names(kind: str) -> tuple[str, ...]:
    """Returns the names that checkpoints give to the scale of `kind` (k or v), in order of precedence."""
    scale = f"{kind}_scale"
    return scale, f"attn.{scale}", f"{kind}_proj.{scale}", f"{kind}_proj.output_scale"


def _read(files: CheckpointFiles, attention: str, names: tuple[str, ...]) -> float | None:
    for name in names:
        full = f"{attention}.{name}"
        if full in files.names:
            shape, dtype = files.describe(full)
            if math.prod(shape) != 1 or dtype not in ("F32", "F16", "BF16"):
                raise ModelError(
                    f"{full} in {files.directory} is {dtype} {shape}; only one number per layer is supported"
                )
            scale = float(files.read(full))
            if not (math.isfinite(scale) and scale > 0):
                raise ModelError(f"{full} in {files.directory} is {scale}; a scale is a positive number")
            return scale
    return None
