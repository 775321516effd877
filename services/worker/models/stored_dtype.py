"""Finds the float type of a checkpoint whose config.json does not name one: gpt-oss, GPT-2 and others."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from services.worker.errors import ModelError
from services.worker.fields import Fields
from services.worker.json_files import MAX_INDEX_BYTES, is_inside, read_json

_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_dtype(config: Fields, directory: Path) -> str:
    """Returns the float type that config.json names. If it names none, returns the type of most floats in the first
    safetensors file in `directory`. If there is none either, returns bfloat16 for a quantized checkpoint, because none
    is published with float32 beside its quantized weights, and float32 for others, as transformers does."""
    named = config.text("dtype", config.text("torch_dtype", ""))
    if named:
        return named
    is_quantized = bool(config.values.get("quantization_config"))
    return _stored_dtype(directory) or ("bfloat16" if is_quantized else "float32")


def _stored_dtype(directory: Path) -> str | None:
    """Returns None if there is no file that can be read. The loader reports broken files."""
    from safetensors import SafetensorError, safe_open

    counts: Counter[str] = Counter()
    try:
        path = _first_file(directory)
        if path is None:
            return None
        with safe_open(path, framework="numpy") as file:  # reads only the header
            for tensor in map(file.get_slice, file.keys()):
                if tensor.get_dtype() in _NAMES:
                    counts[tensor.get_dtype()] += math.prod(tensor.get_shape())
    except (OSError, ModelError, SafetensorError, ValueError):
        return None
    return _NAMES[counts.most_common(1)[0][0]] if counts else None


def _first_file(directory: Path) -> Path | None:
    """Returns the first safetensors file; None if the index names none inside `directory`."""
    index = read_json(directory / "model.safetensors.index.json", MAX_INDEX_BYTES)
    if index is None:
        return directory / "model.safetensors"
    files = index.get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        return None
    name = min(files.values())
    return directory / name if is_inside(name) else None
