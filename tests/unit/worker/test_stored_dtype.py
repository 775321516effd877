"""The float type of a checkpoint whose config.json does not name one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.worker.fields import Fields
from services.worker.models.stored_dtype import read_dtype


def dtype(directory: Path, **values: Any) -> str:
    return read_dtype(Fields(values, "config.json"), directory)


def test_config_json_comes_first(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    assert dtype(tmp_path, torch_dtype="float16") == "float16"
    assert dtype(tmp_path, torch_dtype="float16", dtype="float32") == "float32"


def test_else_the_type_of_most_floats_in_the_first_file_counts(tmp_path: Path) -> None:
    tensors = {
        "blocks": torch.zeros(1000, dtype=torch.uint8),
        "norm": torch.ones(3),
        "head": torch.zeros(7, 7, dtype=torch.bfloat16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert dtype(tmp_path) == "bfloat16"
    (tmp_path / "model.safetensors").rename(tmp_path / "first.safetensors")
    files = {"a": "second.safetensors", "b": "first.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert dtype(tmp_path) == "bfloat16"


def test_no_data_of_a_tensor_is_read(tmp_path: Path) -> None:
    num_bytes = 1 << 36  # more than a test may take
    description = {"dtype": "F16", "shape": [num_bytes // 2], "data_offsets": [0, num_bytes]}
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(header(json.dumps({"a": description}).encode()))
        file.truncate(file.tell() + num_bytes)  # a hole, which takes no space on the disk
    assert dtype(tmp_path) == "float16"


def test_without_files_a_quantized_checkpoint_is_taken_for_bfloat16(tmp_path: Path) -> None:
    assert dtype(tmp_path) == "float32"
    assert dtype(tmp_path, quantization_config={"quant_method": "mxfp4"}) == "bfloat16"


def header(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1",
        struct.pack("<Q", 1 << 62),
        header(b"[]"),
        header(b'{"a": []}'),
        header(b'{"a": {"dtype": "F16"}}'),
        header(b'{"a": {"dtype": "F16", "shape": "wide"}}'),
        header(b'{"a": {"dtype": ["F16"], "shape": [1]}}'),
        header(b"[" * 100_000),
        header(b'{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}') + b"cut",
    ],
)
def test_a_broken_file_is_left_to_the_loader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert dtype(tmp_path) == "float32"


@pytest.mark.parametrize(
    "index",
    [
        "{", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "\\ud800"}}',
    ],
)  # fmt: skip
def test_a_broken_index_is_left_to_the_loader(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert dtype(tmp_path) == "float32"


def test_no_file_outside_the_directory_is_read(tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    save_file({"a": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "other.safetensors")
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    assert dtype(inner) == "float32"
