"""Reads the longest input of an embedding model from its sentence-transformers files."""

from __future__ import annotations

from pathlib import Path

from services.worker.errors import ModelError
from services.worker.fields import MAX_POSITIONS, Fields
from services.worker.json_files import read_json


def read_max_tokens(directory: Path) -> int | None:
    """Returns the limit; None if there is none. Raises ModelError if texts must be lower-cased before tokenizing."""
    path = directory / "sentence_bert_config.json"
    config = Fields(read_json(path) or {}, str(path))
    if config.values.get("do_lower_case"):
        raise ModelError(f"{directory} lowers the case of texts before they are tokenized, which is not supported")
    return config.optional_count("max_seq_length", MAX_POSITIONS)
