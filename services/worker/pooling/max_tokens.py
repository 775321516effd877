"""Reads the maximum input length of an embedding model from its sentence-transformers files."""

from __future__ import annotations

from pathlib import Path

from services.worker.errors import ModelError
from services.worker.fields import MAX_POSITIONS, Fields
from services.worker.json_files import read_json


def read_max_tokens(directory: Path) -> int | None:
    """Returns the maximum number of tokens; None if the files set no maximum. Raises ModelError if the model needs
    texts in lower case."""
    path = directory / "sentence_bert_config.json"
    config = Fields(read_json(path) or {}, str(path))
    if config.values.get("do_lower_case"):
        raise ModelError(f"{path} asks for texts in lower case (do_lower_case), which is not supported")
    return config.optional_count("max_seq_length", MAX_POSITIONS)
