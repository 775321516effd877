"""The longest input that an embedding model was made for, by its sentence-transformers files."""

from __future__ import annotations

from pathlib import Path

from services.worker.errors import ModelError
from services.worker.models.config import read_json


def read_max_tokens(directory: Path) -> int | None:
    """None where they do not say. Raises ModelError for texts that would have to be changed first."""
    config = read_json(directory / "sentence_bert_config.json") or {}
    if config.get("do_lower_case"):
        raise ModelError(f"{directory} lowers the case of texts before they are tokenized, which is not supported")
    return config.get("max_seq_length")
