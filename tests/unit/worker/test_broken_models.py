"""Models that cannot be served are refused in one sentence, within the reading of their files: before any memory is
taken for weights.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from services.worker.checkpoint.find import find_checkpoint
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models.config import read_model_config
from services.worker.models.encoder_config import read_encoder_config
from services.worker.pooling.config import PoolingKind
from services.worker.startup.create_ops import create_ops
from services.worker.startup.load import load_worker
from services.worker.weights.loader import load_decoder
from services.worker.weights.open import open_weights
from tests.unit.worker.memory import growth_below
from tests.unit.worker.tiny_encoders import save_encoder

# `make test-long` tries many times as much.
LONG = int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "dtype": "float32",
    "eos_token_id": 1,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 64,
    "max_window_layers": 2,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "attention_factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "truncate": True,
    },
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "use_sliding_window": False,
    "vocab_size": 32,
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
MAX_GROWTH = 256 << 20  # bytes

Break = Callable[[Path], None]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_model(tmp_path)
    return tmp_path


def write_model(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG))
    shapes = read_model_config(directory).parameters.items()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name if len(shape) == 1 else f"{name}.weight": torch.rand(shape, generator=generator) for name, shape in shapes
    }
    save_file(tensors, directory / "model.safetensors")
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(directory / "tokenizer.json"))


def load(directory: Path, **options: Any) -> None:
    load_worker(WorkerConfig(model=str(directory), device="cpu", num_threads=1, **options), lambda *_: None)


def sets(file: str = "config.json", **values: Any) -> Break:
    """Changes values of a JSON file."""

    def apply(directory: Path) -> None:
        path = directory / file
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | values))

    return apply


def lacks(key: str) -> Break:
    def apply(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({name: value for name, value in CONFIG.items() if name != key}))

    return apply


def writes(file: str, content: str | bytes) -> Break:
    def apply(directory: Path) -> None:
        (directory / file).parent.mkdir(exist_ok=True)
        (directory / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    return apply


def rope(**values: Any) -> Break:
    return sets(rope_scaling=CONFIG["rope_scaling"] | values)


def targets(expression: str) -> Break:
    """Selects the layers that are quantized by a regular expression."""
    group = {"targets": [f"re:{expression}"], "weights": {"strategy": "channel", "num_bits": 8}}
    settings = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"g": group}}
    return sets(quantization_config=settings)


def weight_map(value: Any) -> Break:
    return writes("model.safetensors.index.json", json.dumps({"weight_map": value}))


def cut(num_bytes: int) -> Break:
    """The weights without their last bytes."""

    def apply(directory: Path) -> None:
        path = directory / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-num_bytes])

    return apply


def header(change: Callable[[dict[str, Any]], object], length: int | None = None) -> Break:
    """The weights with another header, and if given one that lies about its own length."""

    def apply(directory: Path) -> None:
        path = directory / "model.safetensors"
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        entries = json.loads(data[8 : 8 + size])
        change(entries)
        written = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(written) if length is None else length) + written + data[8 + size :])

    return apply


def precompiled(charsmap: bytes) -> Break:
    """A tokenizer with sentencepiece's table of replacements."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    return writes("tokenizer.json", json.dumps({"normalizer": normalizer, "model": model, "added_tokens": []}))


def pipe(file: str) -> Break:
    def apply(directory: Path) -> None:
        (directory / file).unlink()
        os.mkfifo(directory / file)

    return apply


def folder(file: str) -> Break:
    return lambda directory: (directory / file).mkdir()


def large(file: str, num_bytes: int) -> Break:
    """A file without content on the disk, whatever its size."""

    def apply(directory: Path) -> None:
        (directory / file).touch()
        os.truncate(directory / file, num_bytes)

    return apply


# The library panics: the prefix is longer than the token.
MERGES = {
    "type": "BPE",
    "continuing_subword_prefix": "####",
    "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": [["a", "b"]],
}
# Takes years for the name of a layer.
ENDLESS = r"(?:[a-z]|[^A-Z]|\w|.)+\d_$"
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"

CASES: dict[str, tuple[Break, str]] = {
    # Numbers of config.json.
    "layers": (sets(num_hidden_layers=10**9), "num_hidden_layers is 1000000000; expected an integer from 1 to 4,096"),
    "layers of nothing": (sets(num_hidden_layers=4000, layer_types=None), "lacks model.layers.10.input_layernorm"),
    "no layers": (sets(num_hidden_layers=0), "num_hidden_layers is 0"),
    "layers text": (sets(num_hidden_layers="2"), 'num_hidden_layers is "2"'),
    "layers float": (sets(num_hidden_layers=2.0), "num_hidden_layers is 2.0"),
    "layers true": (sets(num_hidden_layers=True), "num_hidden_layers is true"),
    "layers null": (sets(num_hidden_layers=None), "num_hidden_layers is null"),
    "layers list": (sets(num_hidden_layers=[2]), "num_hidden_layers is a list of 1 values"),
    "layers object": (sets(num_hidden_layers={}), "num_hidden_layers is an object of 0 values"),
    "layers lacking": (lacks("num_hidden_layers"), "lacks 'num_hidden_layers'"),
    "layer types": (sets(layer_types=["x"], use_sliding_window=True, sliding_window=4), "a list of 2 values"),
    "positions 0": (sets(max_position_embeddings=0), "max_position_embeddings is 0; expected an integer from 1"),
    "positions -5": (sets(max_position_embeddings=-5), "max_position_embeddings is -5"),
    "positions": (sets(max_position_embeddings=10**15), "max_position_embeddings is 1000000000000000"),
    "positions of digits": (sets(max_position_embeddings=10**999), "is a number of too many digits"),
    "hidden": (sets(hidden_size=10**12), "hidden_size is 1000000000000"),
    "hidden of nothing": (sets(hidden_size=1 << 20), "config.json says (32, 1048576)"),
    "hidden negative": (sets(hidden_size=-16), "hidden_size is -16"),
    "vocabulary": (sets(vocab_size=10**12), "vocab_size is 1000000000000"),
    "vocabulary of nothing": (sets(vocab_size=1 << 24), "config.json says (16777216, 16)"),
    "heads": (sets(num_attention_heads=10**9), "num_attention_heads is 1000000000"),
    "no heads": (sets(num_attention_heads=0), "num_attention_heads is 0"),
    "KV heads": (sets(num_key_value_heads=3), "num_key_value_heads is 3; expected a divisor of num_attention_heads, 2"),
    "head_dim": (sets(head_dim=10**9), "head_dim is 1000000000"),
    "head_dim odd": (sets(head_dim=7), "heads have 7 dimensions; RoPE needs an even number"),
    "MLP": (sets(intermediate_size=10**12), "intermediate_size is 1000000000000"),
    "MLP of nothing": (sets(intermediate_size=4_000_000), "config.json says (4000000, 16)"),
    "window": (sets(sliding_window="x", use_sliding_window=True), 'sliding_window is "x"'),
    "eps": (sets(rms_norm_eps=float("nan")), "rms_norm_eps is NaN"),
    "flag": (sets(tie_word_embeddings="false"), 'tie_word_embeddings is "false"; expected true or false'),
    "architecture": (sets(architectures=["Fancy\nModel"]), "is Fancy Model, which is not supported"),
    "architectures": (sets(architectures="Qwen3ForCausalLM"), "expected a list of strings"),
    "dtype": (sets(dtype=7), "dtype is 7; expected a string"),
    "eos": (sets(eos_token_id="x"), 'eos_token_id is "x"; expected a token id'),
    # RoPE.
    "rope text": (sets(rope_scaling="x"), 'rope_scaling is "x"; expected an object'),
    "rope kind": (rope(rope_type=7), "rope_type is 7"),
    "rope factor": (rope(factor=0), "factor is 0; expected a number over 0"),
    "rope factor text": (rope(factor="8"), 'factor is "8"'),
    "rope stretched": (rope(factor=1e6, original_max_position_embeddings=10**7), "RoPE scaling gives"),
    "rope theta": (sets(rope_theta=1), "rope_theta is 1; expected a number over 1"),
    "rope infinite": (sets(rope_theta=float("inf")), "rope_theta is Infinity"),
    "rope original": (rope(original_max_position_embeddings=0), "original_max_position_embeddings is 0"),
    "rope llama3": (rope(rope_type="llama3", low_freq_factor=5.0, high_freq_factor=4.0), "at least low_freq_factor, 5"),
    # Quantization.
    "quantization": (sets(quantization_config="x"), "quantization_config of"),
    "group size": (sets(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 0}), "a group size is 0"),
    "targets": (targets("("), "is no regular expression"),
    "target of gigabytes": (targets("((a{1000}){1000}){1000}"), "is too long or repeats too much"),
    "long target": (targets("a" * 5000), "is too long or repeats too much"),
    "nested target": (targets("(" * 2000 + ")" * 2000), "is no regular expression"),
    "target without end": (targets(ENDLESS), "takes longer than 1 s for model.embed_tokens"),
    # JSON itself.
    "nested": (writes("config.json", "[" * 50_000 + "]" * 50_000), "config.json cannot be read: it is nested too deep"),
    "nested value": (writes("config.json", '{"a":' * 50_000 + "1" + "}" * 50_000), "it is nested too deep"),
    "no object": (writes("config.json", "[]"), "config.json holds no JSON object"),
    "no JSON": (writes("config.json", "{"), "config.json cannot be read"),
    "no text": (writes("config.json", b"\xff\xfe"), "config.json cannot be read"),
    "empty": (writes("config.json", ""), "config.json cannot be read"),
    "generation": (writes("generation_config.json", "[1]"), "generation_config.json holds no JSON object"),
    "many eos": (sets(eos_token_id=[1] * 1025), "eos_token_id is a list of 1,025 token ids; expected at most 1,024"),
    "generation eos": (sets("generation_config.json", eos_token_id=[1, None]), "eos_token_id is null"),
    # The tokenizer.
    "tokenizer": (writes("tokenizer.json", "{}"), "tokenizer.json is no tokenizer"),
    "tokenizer null": (writes("tokenizer.json", "null"), "tokenizer.json is no tokenizer"),
    "tokenizer bytes": (writes("tokenizer.json", b"\xff"), "tokenizer.json is no tokenizer"),
    "tokenizer config": (writes("tokenizer_config.json", '"x"'), "tokenizer_config.json holds no JSON object"),
    "template": (sets("tokenizer_config.json", chat_template=7), "chat_template is neither a template nor a list"),
    "template list": (sets("tokenizer_config.json", chat_template=[{"name": 1}]), "chat_template is neither"),
    "template bytes": (writes("chat_template.jinja", b"\xff"), "chat_template.jinja cannot be read"),
    "surrogate": (writes("tokenizer_config.json", '{"bos_token": "\\ud800"}'), "is not valid Unicode"),
    "special tokens": (writes("special_tokens_map.json", "[]"), "special_tokens_map.json holds no JSON object"),
    "charsmap": (precompiled(b"x"), "tokenizer.json is no tokenizer: Precompiled"),
    "charsmap in use": (precompiled(bytes((4, 0, 0, 0, 0, 0, 0, 0))), "is a tokenizer that fails on a text"),
    "merges": (
        writes("tokenizer.json", json.dumps({"model": MERGES, "added_tokens": []})),
        "tokenizer.json is no tokenizer: range end index",
    ),
    # What no file of a model is.
    "pipe": (pipe("config.json"), "config.json is not a regular file"),
    "pipe of a tokenizer": (pipe("tokenizer.json"), "tokenizer.json is not a regular file"),
    "directory": (folder("generation_config.json"), "generation_config.json is not a regular file"),
    "large": (large("config.json", 17 << 20), "config.json has 17,825,792 bytes; expected at most 16,777,216"),
    "large tokenizer": (large("tokenizer.json", 1 << 30), "tokenizer.json has 1,073,741,824 bytes; expected at most"),
    "large index": (large("model.safetensors.index.json", 65 << 20), "has 68,157,440 bytes; expected at most"),
    # Git LFS pointers.
    "LFS config": (writes("config.json", POINTER), "config.json is a Git LFS pointer, not the file itself; run `git"),
    "LFS weights": (writes("model.safetensors", POINTER), "model.safetensors is a Git LFS pointer"),
    "LFS tokenizer": (writes("tokenizer.json", POINTER), "tokenizer.json is a Git LFS pointer"),
    "LFS index": (writes("model.safetensors.index.json", POINTER), "index.json is a Git LFS pointer"),
    # The index.
    "index": (writes("model.safetensors.index.json", "[]"), "index.json holds no JSON object"),
    "weight_map": (weight_map([]), "weight_map is not an object"),
    "weight_map numbers": (weight_map({EMBEDDING: 1}), "weight_map is not an object that maps each tensor to a file"),
    "weight_map missing": (writes("model.safetensors.index.json", "{}"), "weight_map is not an object"),
    "file missing": (weight_map({EMBEDDING: "none.safetensors"}), "none.safetensors cannot be read"),
    "file above": (weight_map({EMBEDDING: "../model.safetensors"}), "which is outside the model's directory"),
    "file elsewhere": (weight_map({EMBEDDING: "/etc/passwd"}), "which is outside the model's directory"),
    "file with NUL": (weight_map({EMBEDDING: "a\0b"}), "which is outside the model's directory"),
    "tensor elsewhere": (weight_map(dict.fromkeys("ab", "model.safetensors")), "lacks model.embed_tokens"),
    # Safetensors files.
    "cut": (cut(16), "model.safetensors cannot be read"),
    "cut in the header": (cut(7000), "model.safetensors cannot be read"),
    "no weights": (writes("model.safetensors", b""), "model.safetensors cannot be read"),
    "length": (header(lambda _: None, length=2**62), "model.safetensors cannot be read"),
    "short length": (header(lambda _: None, length=10), "model.safetensors cannot be read"),
    "header list": (writes("model.safetensors", struct.pack("<Q", 2) + b"[]"), "model.safetensors cannot be read"),
    "offsets": (header(lambda e: e[NORM].update(data_offsets=[0, 64])), "model.safetensors cannot be read"),
    "offsets beyond": (header(lambda e: e[NORM].update(data_offsets=[0, 2**60])), "model.safetensors cannot be read"),
    "shape": (header(lambda e: e[NORM].update(shape=[2**40])), "model.safetensors cannot be read"),
    "shape reshaped": (header(lambda e: e[EMBEDDING].update(shape=[16, 32])), "config.json says (32, 16)"),
    "dtype lie": (header(lambda e: e[NORM].update(dtype="I32")), "is I32; supported are F32, F16, BF16"),
    "dtype size": (header(lambda e: e[NORM].update(dtype="F16")), "model.safetensors cannot be read"),
    "dtype unknown": (header(lambda e: e[NORM].update(dtype="X9")), "model.safetensors cannot be read"),
    "tensor missing": (header(lambda e: e.update(other=e.pop(NORM))), f"lacks {NORM}"),
    # sentence-transformers' files.
    "pooling outside": (
        writes("modules.json", '[{"type": "x.Pooling", "path": "../.."}]'),
        "which is outside the model's directory",
    ),
    "modules": (writes("modules.json", "{}"), "modules.json holds no list of modules"),
    "matryoshka sizes": (sets(matryoshka_dimensions=[8] * 4097), "expected a list of at most 4,096 sizes"),
    "matryoshka": (sets(matryoshka_dimensions="x"), "matryoshka_dimensions is"),
    "prompts": (writes("config_sentence_transformers.json", '{"prompts": [1]}'), "prompts is a list of 1 values"),
}  # fmt: skip


def test_the_model_is_served_as_it_is(directory: Path) -> None:
    load(directory)


def test_a_tokenizer_may_lack_a_token_for_unknown_characters(directory: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="none")).save(str(directory / "tokenizer.json"))
    load(directory)


@pytest.mark.parametrize("name", CASES)
def test_a_broken_model_is_refused_in_one_sentence(directory: Path, name: str) -> None:
    break_it, sentence = CASES[name]
    break_it(directory)
    with growth_below(MAX_GROWTH), pytest.raises(ModelError) as refusal:
        load(directory)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "sizes", [{"vocab_size": 1 << 24, "hidden_size": 1 << 22}, {"num_hidden_layers": 4096, "hidden_size": 1 << 20}]
)
def test_random_weights_larger_than_the_memory_are_refused(directory: Path, sizes: dict[str, int]) -> None:
    sets(layer_types=None)(directory)
    sets(**dict[str, Any](sizes))(directory)
    message = r"the weights of .* take [\d,.]+ GiB, but this host has [\d,.]+ GiB"
    with growth_below(MAX_GROWTH), pytest.raises(ModelError, match=message):
        load(directory, load_format="dummy")


def test_a_long_context_costs_no_more_than_the_kv_cache_holds(directory: Path) -> None:
    """A table of rotations for 10^8 positions would take 3.2 GB."""
    sets(max_position_embeddings=10**8, rope_scaling=None)(directory)
    with growth_below(MAX_GROWTH):
        load(directory, num_gpu_blocks_override=10, enable_chunked_prefill=False)


def test_end_tokens_outside_the_vocabulary_are_left_out(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets("generation_config.json", eos_token_id=[1, 32, -1])(directory)
    assert read_model_config(directory).eos_token_ids == (1,)
    assert "eos_token_id names token 32, but the model has 32 tokens; the token is ignored" in caplog.text


ENCODER = {
    "architectures": ["XLMRobertaModel"],
    "hidden_act": "gelu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 66,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "vocab_size": 32,
}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000; expected an integer from 1 to 4,096"),
        ("max_position_embeddings", 2, "expected more than 2, the row of the first token"),
        ("pad_token_id", "x", 'pad_token_id is "x"'),
        ("num_attention_heads", 3, "num_attention_heads is 3; expected a divisor of the hidden size, 16"),
        ("num_attention_heads", 0, "num_attention_heads is 0"),
        ("hidden_act", ["gelu"], "hidden_act is a list of 1 values; expected a string"),
        ("type_vocab_size", 0, "type_vocab_size is 0"),
        ("layer_norm_eps", "1", 'layer_norm_eps is "1"'),
    ],
)
def test_an_encoder_is_checked_as_well(tmp_path: Path, name: str, value: object, sentence: str) -> None:
    writes("config.json", json.dumps(ENCODER))(tmp_path)
    config = read_encoder_config(tmp_path)
    assert config is not None
    assert config.max_model_len == 64
    sets(**dict[str, Any]({name: value}))(tmp_path)
    with pytest.raises(ModelError) as refusal:
        read_encoder_config(tmp_path)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("factor", [1e-9, 1e6])
def test_the_positions_of_an_encoder_are_bounded(tmp_path: Path, factor: float) -> None:
    scaling = {"rope_type": "linear", "factor": factor}
    save_encoder(tmp_path, "NomicBertModel")
    sets(max_position_embeddings=10**7, rope_scaling=scaling)(tmp_path)
    with pytest.raises(ModelError, match=r"RoPE scaling gives [\d,]+ positions; expected 1 to 100,000,000"):
        read_encoder_config(tmp_path)


def test_the_positions_of_an_encoder_cost_no_more_than_it_serves(tmp_path: Path) -> None:
    """A table of rotations for 10^8 positions would take 5 GB."""
    save_encoder(tmp_path, "NomicBertModel")
    sets(max_position_embeddings=10**8)(tmp_path)
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with growth_below(MAX_GROWTH):
        load(tmp_path)


# -- Any value anywhere in config.json -----------------------------------------------------------------------------

NUMBERS = st.sampled_from([-(10**30), -1, 0, 1, 2, 3, 7, 64, 4096, 2**31, 10**9, 10**15, 10**400])
FLOATS = st.sampled_from([-1.0, 0.0, 1e-300, 0.5, 1.0, 2.5, 1e300, float("nan"), float("inf")])
TEXTS = st.sampled_from(["", "x", "default", "linear", "llama3", "yarn", "silu", "a\nb", "\ud800", "float16"])
SCALARS = st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXTS, SCALARS, max_size=2)
FAMILIES = st.sampled_from(["Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3", "Cwm", "Phi3", "IQuestCoder"])
FURTHER = [
    "quantization_config",
    "no_rope_layers",
    "no_rope_layer_interval",
    "partial_rotary_factor",
    "rope_parameters",
]
PATHS: list[tuple[str, ...]] = [(key,) for key in (*CONFIG, *FURTHER, "is_matryoshka", "matryoshka_dimensions")]
PATHS += [("rope_scaling", key) for key in (*CONFIG["rope_scaling"], "low_freq_factor", "high_freq_factor")]


@settings(max_examples=250 * LONG, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(PATHS), VALUES, min_size=1, max_size=3), family=st.none() | FAMILIES)
def test_whatever_config_json_says_it_works_or_is_refused_in_one_sentence(
    directory: Path, changes: dict[tuple[str, ...], Any], family: str | None
) -> None:
    config = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        if len(path) == 1:
            config[path[0]] = value
        elif isinstance(config["rope_scaling"], dict):
            config["rope_scaling"][path[1]] = value
    if family is not None:
        config["architectures"] = [f"{family}ForCausalLM"]
    (directory / "config.json").write_text(json.dumps(config))
    sentence = ""
    with growth_below(MAX_GROWTH):
        try:
            read(directory)
        except ModelError as error:
            sentence = str(error)
    assert "\n" not in sentence
    assert len(sentence) <= 1001


def read(directory: Path) -> None:
    """All that is read of a model, and its weights where they fit the configuration."""
    checkpoint = find_checkpoint(WorkerConfig(model=str(directory)))
    if checkpoint.read_encoder_config() is not None:
        return
    config = checkpoint.read_config()
    checkpoint.read_pooling("auto", PoolingKind.LAST)
    ops = create_ops(torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        source = open_weights(directory, config, ops, "auto", None, lambda _: None)
        load_decoder(config, ops, source, min(config.max_model_len, 64))


@settings(max_examples=150 * LONG, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2200), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_is_in_the_weights_header_it_is_read_or_refused(
    directory: Path, changes: list[tuple[int, int]]
) -> None:
    path = directory / "model.safetensors"
    whole = directory / "whole"
    if not whole.exists():
        path.rename(whole)
    data = bytearray(whole.read_bytes())
    for index, value in changes:
        data[index] = value
    path.unlink(missing_ok=True)  # The last one may still be mapped.
    path.write_bytes(data)
    sentence = ""
    with growth_below(MAX_GROWTH):
        try:
            read(directory)
        except ModelError as error:
            sentence = str(error)
    assert "\n" not in sentence
