"""Checkpoints in every form they come in: sharded, in half precision, tied, incomplete."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models.config import read_model_config
from services.worker.startup.create_ops import create_ops
from services.worker.weights.dummy_source import DummySource
from services.worker.weights.loader import load_decoder
from services.worker.weights.safetensors_source import SafetensorsSource
from tests.fakes.waiting import HANG_S
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_model, make_runner, save_model

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[5, 9, 11], [7] * 30, [100, 3, 150, 20, 21]]


def check_against(reference: transformers.PreTrainedModel, directory: Path) -> None:
    near_ties = NearTies()
    for request in Driver(make_runner(directory)).run(*[Request(prompt, 8) for prompt in PROMPTS]):
        near_ties.check(reference, request.prompt, request.output)
    near_ties.report()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_compute_in_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make_model("Llama")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.save_pretrained(tmp_path)
    for parameter in model.parameters():
        parameter.data = parameter.data.float()
    check_against(model, tmp_path)


def test_a_sharded_checkpoint_is_read_through_its_index(tmp_path: Path) -> None:
    model = make_model("Qwen2")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    check_against(model, tmp_path)


def test_tied_embeddings_need_no_output_layer_and_ignore_one(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    check_against(model, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"lm_head.weight": torch.zeros(199, 64)})
    check_against(model, tmp_path)


@pytest.mark.parametrize(("family", "tied"), [("Llama", True), ("Qwen3", False), ("GPTNeoX", False)])
def test_the_prefix_of_the_network_can_be_left_out(tmp_path: Path, family: str, tied: bool) -> None:
    """As where the network was saved without its output layer, or that was added later."""
    model = save_model(tmp_path, family, tie_word_embeddings=tied)
    prefix = f"{model.base_model_prefix}."
    rewrite(tmp_path, lambda tensors: {name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    assert not any(name.startswith(prefix) for name in load_file(tmp_path / "model.safetensors"))
    check_against(model, tmp_path)


def test_progress_goes_from_nothing_to_one(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    config = read_model_config(tmp_path)
    fractions: list[float] = []
    source = SafetensorsSource(tmp_path, config, fractions.append, CPU)
    load_decoder(config, create_ops(CPU, torch.float32), source, 16)
    assert len(fractions) == len(config.parameters)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = directory / "model.safetensors"
    save_file(change(load_file(file)), file)


NORM, GATE = "model.norm.weight", "model.layers.1.mlp.gate_proj.weight"


def without(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "one missing": (without(NORM), "lacks model.norm.weight, which LlamaForCausalLM needs"),
    "two missing": (without(NORM, GATE), f"lacks {GATE} and 1 more tensors"),
    "unexpected": (
        lambda tensors: tensors | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)},
        "holds model.layers.0.self_attn.q_proj.bias, which LlamaForCausalLM does not use",
    ),
    "another shape": (
        lambda tensors: tensors | {NORM: torch.zeros(63)},
        "model.norm.weight in .* is (63,); config.json says (64,)",
    ),
    "another type": (
        lambda tensors: tensors | {NORM: torch.zeros(64, dtype=torch.int8)},
        "is I8; supported are F32, F16, BF16",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_checkpoint_that_is_not_what_its_config_says_is_refused(tmp_path: Path, case: str) -> None:
    save_model(tmp_path, "Llama")
    change, sentence = BROKEN[case]
    rewrite(tmp_path, change)
    with pytest.raises(ModelError) as refusal:
        SafetensorsSource(tmp_path, read_model_config(tmp_path), lambda _: None, CPU)
    assert sentence.replace(".*", str(tmp_path)) in str(refusal.value)


def test_a_directory_without_safetensors_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors and no model\.safetensors\.index\.json$"):
        SafetensorsSource(tmp_path, read_model_config(tmp_path), lambda _: None, CPU)


def test_pickles_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama")
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="its weights are pickles") as refusal:
        SafetensorsSource(tmp_path, read_model_config(tmp_path), lambda _: None, CPU)
    command = shlex.split(str(refusal.value).rpartition("convert them: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True, timeout=HANG_S)
    check_against(model, tmp_path)


MISTRAL_NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "layers",
}


def in_mistrals_layout(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    stored = {}
    for full_name, tensor in tensors.items():
        name, content = full_name, tensor
        for known, own in MISTRAL_NAMES.items():
            name = name.replace(known, own)
        if name.endswith(("wq.weight", "wk.weight")):
            # Dimension j of a head's first half goes to 2 j, and of the second half to 2 j + 1.
            content = torch.stack([tensor.view(-1, 2, 8, 64)[:, half] for half in (0, 1)], dim=2).reshape(-1, 64)
        stored[name] = content.contiguous()
    return stored


PARAMS = {"dim": 64, "n_layers": 3, "head_dim": 16, "hidden_dim": 96, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-6}


@pytest.mark.parametrize("sharded", [False, True])
def test_mistrals_own_layout_is_read(tmp_path: Path, sharded: bool) -> None:
    model = save_model(tmp_path, "Mistral", sliding_window=None)
    tensors = in_mistrals_layout(load_file(tmp_path / "model.safetensors"))
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        (tmp_path / name).unlink()
    (tmp_path / "params.json").write_text(json.dumps(PARAMS | {"vocab_size": 199, "rope_theta": 10000.0, "moe": None}))
    if sharded:
        for index, name in enumerate(tensors):
            save_file({name: tensors[name]}, tmp_path / f"consolidated-{index}.safetensors")
        weight_map = {name: f"consolidated-{index}.safetensors" for index, name in enumerate(tensors)}
        (tmp_path / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    else:
        save_file(tensors, tmp_path / "consolidated.safetensors")
    check_against(model, tmp_path)


def test_mistrals_own_layout_of_another_model_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    (tmp_path / "model.safetensors").rename(tmp_path / "consolidated.safetensors")
    with pytest.raises(ModelError, match="in Mistral's own layout only"):
        SafetensorsSource(tmp_path, read_model_config(tmp_path), lambda _: None, CPU)
    (tmp_path / "config.json").unlink()
    (tmp_path / "params.json").write_text(json.dumps(PARAMS | {"vocab_size": 199, "moe": {"num_experts": 8}}))
    with pytest.raises(ModelError, match=r"params\.json has moe, which Quire cannot read"):
        read_model_config(tmp_path)


def test_a_checkpoint_of_its_own_code_is_refused(tmp_path: Path) -> None:
    config = {"architectures": ["FancyForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.FancyForCausalLM"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"is FancyForCausalLM, .* own code \(auto_map\) is never run; `quire models`"):
        read_model_config(tmp_path)


def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    (tmp_path / "model.safetensors").write_bytes(b"These are no weights.")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        SafetensorsSource(tmp_path, read_model_config(tmp_path), lambda _: None, CPU)


def test_old_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama")
    rewrite(tmp_path, lambda tensors: tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    check_against(model, tmp_path)


@pytest.mark.parametrize("name", ["model.norm.weight", "transformer.h.0.ln_1.weight", "transformer.norm_f.weight"])
def test_dummy_norms_have_weights_of_1(name: str) -> None:
    assert torch.equal(DummySource({name: (5,)}, CPU, torch.float32).vector(name), torch.ones(5))


def test_dummy_weights_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    config = read_model_config(tmp_path)
    sources = [DummySource(config.parameters, CPU, torch.float32, seed=seed) for seed in (1, 1, 2)]
    sources[1].weight("lm_head")  # the order makes no difference
    first, second, other = (source.weight("model.layers.1.mlp.gate_proj") for source in sources)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert isinstance(other, Tensor)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    beside_it = sources[0].weight("model.layers.1.mlp.up_proj")  # of the same shape
    assert isinstance(beside_it, Tensor)
    assert not torch.equal(first, beside_it)
    assert 0.018 < float(first.std()) < 0.022
