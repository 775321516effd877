"""GGUF files compute what the checkpoints they were made from do."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from quire.inference.v1 import model_pb2
from services.worker.checkpoint.find import find_checkpoint
from services.worker.checkpoint.gguf_config import read_gguf_config
from services.worker.checkpoint.tokenizer_files import read_tokenizer
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.gguf.file import GGUFFile
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.models.decoders.llama import LlamaConfig
from services.worker.models.rope import RopeConfig
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.weights.gguf_source import GGUFSource
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.gguf.writing import Kind, finish, set_tensor, write_gguf
from tests.unit.worker.tiny_models import NearTies, make_runner, save_model

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
PROMPTS = [[5, 9, 11], [7] * 30, [100, 3, 150, 20, 21]]
SHARED = Path(os.environ.get("QUIRE_SHARED", Path(__file__).parents[5] / "shared"))
STORIES = SHARED / "models" / "stories260k"


def rope_of(config: ModelConfig) -> RopeConfig:
    assert isinstance(config.network, LlamaConfig)
    return config.network.rope


def outputs(model: Path, count: int = 8) -> list[list[int]]:
    runner = make_runner(model)
    return [request.output for request in Driver(runner).run(*[Request(prompt, count) for prompt in PROMPTS])]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True}),
        ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        ("Qwen3", {}),
    ],
    ids=["llama", "llama, tied", "llama with biases", "qwen2", "qwen3"],
)
def test_float32_gives_the_same_configuration_and_tokens(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    save_model(tmp_path / "model", family, **options)
    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path / "model")
    original, converted = read_model_config(tmp_path / "model"), read_gguf_config(file)
    assert isinstance(original.network, LlamaConfig)
    assert isinstance(converted.network, LlamaConfig)
    eps = original.network.rms_norm_eps
    assert converted.network.rms_norm_eps == pytest.approx(eps, rel=1e-7)  # float32 in the file
    network = replace(converted.network, rms_norm_eps=eps)
    assert replace(converted, network=network, quantization=None) == original
    assert outputs(file) == outputs(tmp_path / "model")


@pytest.mark.parametrize(
    ("kind", "expected"), [(Kind.F16, Tensor), (Kind.BF16, Tensor), (Kind.Q8_0, Int8Weight), (Kind.Q4_0, Int4Weight)]
)
def test_matrices_are_those_of_the_file_and_stay_as_they_are(tmp_path: Path, kind: Kind, expected: type) -> None:
    model = save_model(tmp_path, "Llama")
    file = tmp_path / "model.gguf"
    kept = write_gguf(file, tmp_path, kind)
    source = GGUFSource(file, read_gguf_config(file), lambda _: None, CPU)
    for layer in ("model.embed_tokens", "model.layers.1.self_attn.k_proj", "model.layers.2.mlp.down_proj", "lm_head"):
        weight = source.weight(layer)
        assert isinstance(weight, expected)
        floats = weight.float() if isinstance(weight, Tensor) else weight.dequantize()
        assert torch.equal(floats, torch.from_numpy(kept[f"{layer}.weight"]))
    near_ties = NearTies()
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in kept.items()})
    for request in Driver(make_runner(file)).run(*[Request(prompt, 8) for prompt in PROMPTS]):
        near_ties.check(model, request.prompt, request.output)
    near_ties.report()


def test_projections_of_different_types_are_computed_side_by_side(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama")
    file = tmp_path / "model.gguf"
    kept = write_gguf(file, tmp_path, {"q_proj": Kind.Q4_0, "k_proj": Kind.Q8_0, "gate_proj": Kind.Q8_0})
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in kept.items()})
    near_ties = NearTies()
    for request in Driver(make_runner(file)).run(*[Request(prompt, 8) for prompt in PROMPTS]):
        near_ties.check(model, request.prompt, request.output)
    near_ties.report()


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q5_0, Kind.Q4_K, Kind.Q6_K, Kind.Q2_K])
def test_other_types_are_read_as_the_floats_that_ggml_makes_of_them(tmp_path: Path, kind: Kind) -> None:
    """The package cannot write most of these: blocks at random, which all mean something."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    save_model(tmp_path, "Llama", hidden_size=block_size, intermediate_size=block_size, num_hidden_layers=1)
    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path)
    rows = np.random.default_rng(1).integers(0, 60, (block_size, block_bytes), dtype=np.uint8)
    set_tensor(file, "blk.0.ffn_up.weight", rows, kind)
    weight = GGUFSource(file, read_gguf_config(file), lambda _: None, CPU).weight("model.layers.0.mlp.up_proj")
    assert isinstance(weight, Tensor)
    assert weight.shape == (block_size, block_size)
    assert torch.equal(weight, torch.from_numpy(gguf.quants.dequantize(rows, kind)))
    assert weight.std() > 0


def test_progress_goes_from_nothing_to_one(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path)
    config = read_gguf_config(file)
    fractions: list[float] = []
    source = GGUFSource(file, config, fractions.append, CPU)
    source.weight("model.embed_tokens")
    assert 0 < fractions[-1] < 1
    for layer in ("q", "k", "v", "o"):
        source.weight(f"model.layers.0.self_attn.{layer}_proj")
    for layer in ("gate", "up", "down"):
        source.weight(f"model.layers.0.mlp.{layer}_proj")
    for norm in ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"):
        source.vector(f"{norm}.weight")
    source.weight("lm_head")
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_rope_scaling_is_that_of_the_metadata(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
    save_model(tmp_path, "Qwen2", rope_parameters=scaling)
    file = tmp_path / "model.gguf"
    write_gguf(
        file,
        tmp_path,
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=128,
    )
    assert rope_of(read_gguf_config(file)) == rope_of(read_model_config(tmp_path))
    assert outputs(file) == outputs(tmp_path)


def test_llama_3_s_rope_scaling_is_a_tensor_of_divisors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    save_model(tmp_path, "Llama", rope_parameters=scaling)
    rope = rope_of(read_model_config(tmp_path))
    plain = rope.__class__(rope.rotary_dim, rope.theta)
    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path)
    divisors = (plain._inverse_frequencies(1) / rope._inverse_frequencies(1)).numpy()
    assert divisors.max() == pytest.approx(8.0)
    set_tensor(file, "rope_freqs.weight", divisors)
    torch.testing.assert_close(rope_of(read_gguf_config(file)).cos_sin(512), rope.cos_sin(512), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"the trained test model is not at {STORIES}")
def test_a_trained_model_tells_its_published_story_out_of_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "stories.gguf"
    write_gguf(file, STORIES)
    golden = json.loads((STORIES / "golden.json").read_text())
    story = Request(golden["prompt_token_ids"], golden["max_tokens"])
    Driver(make_runner(file)).run(story)
    bundle = model_pb2.TokenizerBundle.FromString(read_tokenizer(file).data)
    tokenizer = Tokenizer.from_str(bundle.tokenizer_json.decode())
    assert tokenizer.decode(story.output) == golden["text"]
    original = Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    for text in (golden["text"], "Über 3 Dinge\nand more", "a"):
        assert tokenizer.encode(text).ids == original.encode(text).ids
    config = json.loads(bundle.tokenizer_config_json)
    assert config["bos_token"] == "<s>"
    assert config["chat_template"].startswith("{% for message in messages %}")


def test_a_file_or_a_directory_with_one_is_a_model(tmp_path: Path) -> None:
    save_model(tmp_path / "hf", "Llama", num_hidden_layers=1)
    file = tmp_path / "gguf" / "small.gguf"
    file.parent.mkdir()
    write_gguf(file, tmp_path / "hf")
    named = find_checkpoint(WorkerConfig(model=str(file)))
    assert (named.path, named.names) == (file, ("small", str(file)))
    assert named.read_config() == read_gguf_config(file)
    assert find_checkpoint(WorkerConfig(model=str(file.parent))).path == file
    assert find_checkpoint(WorkerConfig(model=str(tmp_path / "hf"))).path == tmp_path / "hf"
    write_gguf(file.with_name("other.gguf"), tmp_path / "hf")
    with pytest.raises(ModelError, match=r"holds 2 GGUF files; name one, such as .*other\.gguf"):
        find_checkpoint(WorkerConfig(model=str(file.parent)))
    with pytest.raises(ModelError, match=r"there is no file .*none\.gguf"):
        find_checkpoint(WorkerConfig(model=str(tmp_path / "none.gguf")))


def refuse(file: Path) -> str:
    with pytest.raises(ModelError) as refusal:
        GGUFSource(file, read_gguf_config(file), lambda _: None, CPU)
    return str(refusal.value)


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path, expert_count=4)
    assert "is a mixture of experts" in refuse(file)
    write_gguf(file, tmp_path, rope__dimension_count=8)
    assert "has RoPE on only a part of each head" in refuse(file)
    write_gguf(file, tmp_path)
    set_tensor(file, "blk.0.ffn_up.weight", np.zeros((96, 36), np.uint8), Kind.IQ4_NL)
    assert "model.layers.0.mlp.up_proj in" in refuse(file)
    assert "is IQ4_NL; supported are F32" in refuse(file)
    write_gguf(file, tmp_path)
    set_tensor(file, "blk.0.ffn_sub_norm.weight", np.zeros(4, np.float32))
    assert "holds blk.0.ffn_sub_norm.weight, which LlamaForCausalLM does not use" in refuse(file)
    write_gguf(file, tmp_path)
    set_tensor(file, "output_norm.weight", np.zeros(63, np.float32), Kind.F32)
    assert "output_norm.weight in" in refuse(file)
    assert "is (63,); its metadata says (64,)" in refuse(file)
    finish(gguf.GGUFWriter(file, "mamba"))
    assert "of architecture mamba, which is not supported; supported are llama, qwen2, qwen3" in refuse(file)
    file.write_bytes(b"no such thing")
    assert "cannot be read as a GGUF file" in refuse(file)
    with pytest.raises(ModelError, match="no tokenizer can be built from the metadata of"):
        read_tokenizer(file)


def test_the_header_is_what_the_gguf_package_has_written(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("a", 7)
    writer.add_int16("b", -7)
    writer.add_uint64("c", 2**40)
    writer.add_float64("d", 0.5)
    writer.add_bool("yes", True)
    writer.add_string("text", "für")
    writer.add_array("numbers", [3, 1, 2])
    writer.add_array("words", ["some", "", "words"])
    writer.add_string("after", "these")
    matrix = np.arange(24, dtype=np.float32).reshape(3, 8)
    writer.add_tensor("first", np.array([1, 2, 3], np.float32))
    writer.add_tensor("second", matrix)
    finish(writer)
    read = GGUFFile(file)
    assert [read.value(key) for key in "abcd"] == [7, -7, 2**40, 0.5]
    assert (read.value("yes"), read.value("text"), read.value("after")) == (True, "für", "these")
    assert (read.value("numbers"), read.value("words"), read.value("none", 4)) == ([3, 1, 2], None, 4)
    assert read.tensors["first"].data.tolist() == [1, 2, 3]
    assert np.array_equal(read.tensors["second"].data, matrix)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ModelError, match="it ends before second does"):
        GGUFFile(file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelError, match="cannot be read as a GGUF file"):
        GGUFFile(file)
    file.write_bytes(b"GGUF\1\0\0\0" + bytes(16))
    with pytest.raises(ModelError, match="its version is 1; only 2 and 3 are supported"):
        GGUFFile(file)


def test_settings_that_are_missing_are_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    finish(gguf.GGUFWriter(file, "llama"))
    assert refuse(file) == f"{file} lacks llama.embedding_length in its metadata"
    assert GGUFFile(file).value("general.name") is None
