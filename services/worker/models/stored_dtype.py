"""Finds the float type of a checkpoint whose config.json does not name one: gpt-oss, GPT-2 and others."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from services.worker.errors import ModelError
from services.worker.fields import Fields
from services.worker.json_files import is_inside, read_json

_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_MAX_HEADER_BYTES = 100_000_000  # as in the safetensors library


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
    counts: Counter[str] = Counter()
    try:
        for tensor in _read_header(directory).values():
            if tensor.get("dtype") in _NAMES:
                counts[tensor["dtype"]] += math.prod(tensor["shape"])
    except (OSError, ModelError, ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error):
        return None
    return _NAMES[counts.most_common(1)[0][0]] if counts else None


def _read_header(directory: Path) -> dict[str, Any]:
    """Returns the description of each tensor in the first safetensors file."""
    index = read_json(directory / "model.safetensors.index.json")
    name = "model.safetensors" if index is None else min(index["weight_map"].values())
    if not is_inside(name):
        return {}
    with (directory / name).open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(size)) if size <= _MAX_HEADER_BYTES else {}
    return header
