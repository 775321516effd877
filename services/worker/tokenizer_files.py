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

    @property
    def tokenizer_json(self) -> bytes:
        return model_pb2.TokenizerBundle.FromString(self.data).tokenizer_json

    def chunks(self) -> list[bytes]:
        return [self.data[start : start + CHUNK_BYTES] for start in range(0, len(self.data), CHUNK_BYTES)]


def read_tokenizer(path: Path, chat_template: str | None = None) -> TokenizerFiles:
    """Of a model directory or a GGUF file. `chat_template` replaces the model's own. Raises ModelError if it holds no
    tokenizer that can be read or converted."""
    tokenizer, config = _from_gguf(path) if path.suffix == ".gguf" else _from_directory(path)
    if chat_template is not None:
        config["chat_template"] = chat_template
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


def _from_directory(directory: Path) -> tuple[bytes, dict[str, Any]]:
    """tokenizer.json, made from another format such as sentencepiece's if need be, and the configuration."""
    config = _config(directory)
    try:
        return (directory / "tokenizer.json").read_bytes(), config
    except FileNotFoundError:
        pass
    try:
        from transformers import AutoTokenizer

        return _saved(AutoTokenizer.from_pretrained(directory))[0], config
    except Exception as error:
        raise ModelError(
            f"{directory} has no tokenizer.json, and none can be made from its other files: {error}"
        ) from error


def _from_gguf(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Both made from the file's metadata."""
    try:
        from transformers import PreTrainedTokenizerFast

        return _saved(PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name))
    except Exception as error:
        raise ModelError(f"{file} has no metadata that a tokenizer can be made from: {error}") from error


def _saved(tokenizer: Any) -> tuple[bytes, dict[str, Any]]:
    """tokenizer.json and the configuration, as transformers writes them."""
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save_pretrained(scratch)
        return (Path(scratch) / "tokenizer.json").read_bytes(), _config(Path(scratch))
