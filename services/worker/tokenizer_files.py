"""The tokenizer files of a model directory, in the form in which they travel to routers."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.inference.v1 import model_pb2
from services.worker.errors import ModelError
from services.worker.models.config import read_json

CHUNK_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A serialized TokenizerBundle and its sha256 in hex."""

    data: bytes
    sha256: str

    def chunks(self) -> list[bytes]:
        return [self.data[start : start + CHUNK_BYTES] for start in range(0, len(self.data), CHUNK_BYTES)]


def read_tokenizer(directory: Path) -> TokenizerFiles:
    """Raises ModelError if the directory holds no tokenizer that can be read or converted."""
    config = _config(directory)
    try:
        tokenizer = (directory / "tokenizer.json").read_bytes()
    except FileNotFoundError:
        tokenizer = _convert(directory)
    bundle = model_pb2.TokenizerBundle(
        tokenizer_json=tokenizer,
        tokenizer_config_json=json.dumps(config, ensure_ascii=False, sort_keys=True).encode(),
    )
    data = bundle.SerializeToString(deterministic=True)
    return TokenizerFiles(data, hashlib.sha256(data).hexdigest())


def _config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json with what newer and older checkpoints keep in files beside it."""
    config = read_json(directory / "tokenizer_config.json") or {}
    for name, token in (read_json(directory / "special_tokens_map.json") or {}).items():
        config.setdefault(name, token)
    template = directory / "chat_template.jinja"
    if template.exists():
        config["chat_template"] = template.read_text(encoding="utf-8")
    further = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    if further:
        templates = [{"name": path.stem, "template": path.read_text(encoding="utf-8")} for path in further]
        default = config.get("chat_template")
        config["chat_template"] = ([{"name": "default", "template": default}] if default else []) + templates
    return config


def _convert(directory: Path) -> bytes:
    """tokenizer.json made by transformers from another format, such as sentencepiece's."""
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory)
        with tempfile.TemporaryDirectory() as scratch:
            tokenizer.save_pretrained(scratch)
            return (Path(scratch) / "tokenizer.json").read_bytes()
    except Exception as error:
        raise ModelError(
            f"{directory} has no tokenizer.json, and none can be made from its other files: {error}"
        ) from error
