"""Reads JSON and text files of a model directory: limits their size and explains each failure in the error."""

from __future__ import annotations

import json
import stat
from pathlib import Path, PurePath
from typing import Any

from services.worker.errors import ModelError

# Maximum sizes. Python's objects take up to 25 times as much memory as the JSON text that they are read from.
MAX_BYTES = 16 << 20
# Of the index of a sharded checkpoint. DeepSeek-V3's has 9 MB for 92,000 tensors.
MAX_INDEX_BYTES = 64 << 20
# Of tokenizer.json, which only the tokenizers library reads. The largest ones have tens of megabytes.
MAX_TOKENIZER_BYTES = 256 << 20
_LFS = b"version https://git-lfs.github.com/spec/"


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any] | None:
    """Returns a JSON object; None if the file does not exist. Raises ModelError if the file holds anything else."""
    content = read_any_json(path, max_bytes)
    if content is not None and not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object")
    return content


def read_any_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Returns the file's JSON value, of any type; None if the file does not exist. Raises ModelError if the file is not
    valid JSON."""
    data = read_file(path, max_bytes)
    if data is None:
        return None
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ModelError(f"{path} cannot be read: it is nested too deep") from error
    except ValueError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def read_text(path: Path) -> str | None:
    """Returns the file's text; None if the file does not exist. Raises ModelError if the text is not valid UTF-8."""
    data = read_file(path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes | None:
    """Returns the file's content; None if the file does not exist.

    Raises ModelError if the file cannot be read, is no regular file, is too large, or is a Git LFS pointer."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is not a regular file")  # reading a pipe could wait for ever
        if status.st_size > max_bytes:
            raise ModelError(f"{path} has {status.st_size:,} bytes; expected at most {max_bytes:,}")
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if data.startswith(_LFS):
        raise _pointer(path)
    return data


def is_inside(name: str) -> bool:
    """Returns whether `name`, a path that a model file contains, stays inside the model's directory. Does not follow
    symbolic links, because in huggingface_hub's cache all files of a model are links to files outside its directory."""
    path = PurePath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def refuse_pointer(path: Path) -> None:
    """Raises ModelError if the file is a Git LFS pointer."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS)) == _LFS
    except OSError:
        return  # The caller reads the file next and reports this error.
    if is_pointer:
        raise _pointer(path)


def _pointer(path: Path) -> ModelError:
    return ModelError(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in {path.parent}")
