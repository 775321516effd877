"""Checkpoints that have only pickles (.bin, .pt, .pth). Quire never reads them, because a pickle can run any code."""

from __future__ import annotations

import shlex
from pathlib import Path

from services.worker.json_files import read_json

_PATTERNS = ("*.bin", "*.pt", "*.pth")


def how_to_convert(directory: Path) -> str:
    """Returns the end of a sentence that says how to get safetensors files; an empty string if `directory` has no
    pickles either."""
    if not any(path for pattern in _PATTERNS for path in directory.glob(pattern)):
        return ""
    architectures = (read_json(directory / "config.json") or {}).get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    model = named if isinstance(named, str) and named.isidentifier() else "AutoModelForCausalLM"
    program = f"import sys, transformers as t; t.{model}.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])"
    command = shlex.join(("python", "-c", program, str(directory)))
    return f": its weights are pickles, which can run any code and so are not read; convert them: {command}"
