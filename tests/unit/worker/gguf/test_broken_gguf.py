"""GGUF files that lie about themselves are refused in one sentence, at once."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.checkpoint.find import find_checkpoint
from services.worker.checkpoint.gguf_config import read_gguf_config
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.weights.gguf_source import GGUFSource
from tests.unit.worker.gguf.writing import write_gguf
from tests.unit.worker.memory import growth_below
from tests.unit.worker.tiny_models import save_model

# `make test-long` tries many times as much.
LONG = int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
U8, U32, STRING, ARRAY, U64 = 0, 4, 8, 9, 10


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file that loads."""
    directory = tmp_path_factory.mktemp("gguf")
    save_model(directory, "Llama", num_hidden_layers=1, vocab_size=40)
    write_gguf(directory / "model.gguf", directory)
    return (directory / "model.gguf").read_bytes()


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def file_of(
    *pairs: bytes, tensors: bytes = b"", num_tensors: int = 0, num_keys: int | None = None, version: int = 3
) -> bytes:
    num_keys = len(pairs) if num_keys is None else num_keys
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(pairs) + tensors


def alignment(kind: int, value: bytes) -> bytes:
    return string("general.alignment") + struct.pack("<I", kind) + value


def array(kind: int, count: int) -> bytes:
    return string("a") + struct.pack("<IIQ", ARRAY, kind, count)


def tensor(num_dimensions: int) -> bytes:
    return string("t") + struct.pack("<I", num_dimensions)


CASES = {
    "alignment 0": (file_of(alignment(U32, struct.pack("<I", 0))), "its alignment is 0; expected a power of two"),
    "alignment 3": (file_of(alignment(U32, struct.pack("<I", 3))), "its alignment is 3"),
    "alignment 2^40": (file_of(alignment(U64, struct.pack("<Q", 1 << 40))), "its alignment is 1099511627776"),
    "alignment text": (file_of(alignment(STRING, string("x"))), "its alignment is 'x'"),
    "keys": (file_of(num_keys=1 << 60), "its header claims 1152921504606846976 keys and 0 tensors"),
    "tensors": (file_of(num_tensors=1 << 60), "its header claims 0 keys and 1152921504606846976 tensors"),
    "strings": (file_of(array(STRING, 1 << 60)), "an array of 1152921504606846976 strings; expected at most 16777216"),
    "numbers": (file_of(array(U8, 1 << 60)), "arrays of 1152921504606846976 numbers; expected at most 4194304"),
    "some strings": (file_of(array(STRING, 1 << 20)), "cannot be read as a GGUF file"),
    "some numbers": (file_of(array(U8, 1 << 20)), "cannot be read as a GGUF file"),
    "arrays of arrays": (file_of(array(ARRAY, 1)), "cannot be read as a GGUF file"),
    "string": (file_of(struct.pack("<Q", 2**63), num_keys=1), "its header has a text of 9223372036854775808 bytes"),
    "value type": (file_of(string("a") + struct.pack("<I", 77)), "values of type 77"),
    "dimensions": (file_of(tensors=tensor(2**32 - 1), num_tensors=1), "t has 4294967295 dimensions"),
    "no dimensions": (file_of(tensors=tensor(0), num_tensors=1), "t has 0 dimensions"),
    "version": (file_of(version=9), "its version is 9"),
    "nothing": (b"", "cannot be read as a GGUF file"),
    "something": (b"hello, I am no model", "it does not begin with GGUF"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer, not the file itself"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    content, sentence = CASES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as refusal:
        find_checkpoint(WorkerConfig(model=str(path))).read_config()
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (struct.pack("<Q", 1 << 30), "its header has a text of 1073741824 bytes"),
        (array(U64, 1 << 23), "its metadata has arrays of 8388608 numbers; expected at most 4194304"),
        (
            b"".join(string(str(n)) + struct.pack("<IIQ", ARRAY, U64, 3 << 20) + bytes(3 << 23) for n in range(2)),
            "arrays of 6291456 numbers",
        ),
    ],
)
def test_a_false_length_costs_no_memory(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of(content, num_keys=2))
    os.truncate(path, 2 << 30)  # without content on the disk
    with growth_below(256 << 20), pytest.raises(ModelError, match=sentence):
        find_checkpoint(WorkerConfig(model=str(path))).read_config()


def test_a_truncated_file_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=r"cannot be read as a GGUF file: it ends before .* does"):
        read_gguf_config(path)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("block_count", 10**9, "num_hidden_layers is 1000000000"),
        ("block_count", 4000, "lacks blk.1."),
        ("embedding_length", 0, "embedding_length is 0"),
        ("attention.head_count", 0, "attention.head_count is 0"),
        ("context_length", 0, "max_position_embeddings is 0"),
        ("feed_forward_length", 2**31, "intermediate_size is 2147483648"),
        ("attention.key_length", 7, "heads have 7 dimensions"),
    ],
)
def test_a_number_of_the_metadata_is_refused(tmp_path: Path, whole: bytes, key: str, value: int, sentence: str) -> None:
    name = string(f"llama.{key}") + struct.pack("<I", U32)
    at = whole.index(name) + len(name)
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", value) + whole[at + 4 :])
    with pytest.raises(ModelError) as refusal:
        read_gguf_config(path)
    assert sentence in str(refusal.value)


@settings(max_examples=150 * LONG, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_is_in_the_header_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "model.gguf"
    data = bytearray(whole)
    for index, value in changes:
        data[index] = value
    path.unlink(missing_ok=True)  # The last one may still be mapped.
    path.write_bytes(data)
    sentence = ""
    try:
        config = read_gguf_config(path)
        source = GGUFSource(path, config, lambda _: None, torch.device("cpu"))
        source.vector("model.norm.weight")
        source.weight("model.layers.0.self_attn.q_proj")
    except ModelError as error:
        sentence = str(error)
    assert "\n" not in sentence
