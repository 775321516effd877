"""DeepSeek's latent attention: the size of its cache, its bits in any batch, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.errors import ModelError
from services.worker.models import kv_bytes_per_token
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.models.decoders.deepseek_moe import DeepSeekConfig
from services.worker.models.decoders.glm_moe import GroupedAttentionConfig
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import AttentionShape
from services.worker.ops.reference import ReferenceOps
from services.worker.pages.kv_cache import allocate_pages, block_bytes
from services.worker.pages.page_copies import PlainPageCopies
from services.worker.quantization.at_load import AT_LOAD
from services.worker.quantization.kinds import Int8Weight, Weight
from services.worker.startup.create_ops import create_ops
from services.worker.weights.dummy_source import DummySource
from services.worker.weights.loader import load_decoder
from tests.models.cases.deepseek import CASES
from tests.models.tiny import VOCAB_SIZE, save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.quantization.stored import fp8_in_blocks
from tests.unit.worker.test_batch_invariance import compute, texts
from tests.unit.worker.tiny_models import make_decoder, make_runner

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save(directory, next(case for case in CASES if case.model_type == "deepseek_v3"))
    return directory


def read(directory: Path, **values: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(values))
    return read_model_config(directory)


@pytest.mark.parametrize("name", ["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"])
def test_the_cache_holds_what_the_papers_table_says(tmp_path: Path, name: str) -> None:
    """DeepSeek-V2, table 1: (512 + 64) elements per token and layer. No rank has less: they share the latent vector."""
    model = read(tmp_path, architectures=[name], num_experts_per_tok=8, num_hidden_layers=5)
    assert kv_bytes_per_token(model, element_bytes=2) == 5 * 576 * 2
    assert kv_bytes_per_token(model, element_bytes=2, tensor_parallel_size=8) == 5 * 576 * 2
    assert block_bytes(model, 16, torch.bfloat16) == 16 * 5 * 576 * 2
    pages = allocate_pages(model, 3, 16, CPU, torch.bfloat16)
    assert all(layer.values.data_ptr() == layer.keys.data_ptr() for layer in pages)
    assert sum(tensor.nbytes for layer in pages for tensor in layer.tensors) == 3 * block_bytes(
        model, 16, torch.bfloat16
    )


def test_swap_carries_the_latent_vectors(directory: Path) -> None:
    pages = allocate_pages(read_model_config(directory), 4, 16, CPU, torch.float32)
    for layer in pages:
        layer.keys.normal_()
    before = [layer.keys.clone() for layer in pages]
    copies = PlainPageCopies(pages, 2)
    copies.save(np.array([3, 1]), np.array([0, 1]))
    for layer in pages:
        layer.keys[1:].zero_()
    copies.load(np.array([0, 1]), np.array([2, 1]))
    for layer, saved in zip(pages, before, strict=True):
        assert torch.equal(layer.keys[[2, 1]], saved[[3, 1]])
        assert torch.equal(layer.values[[2, 1]], saved[[3, 1], ..., : layer.value_dim])


def test_a_copied_block_holds_the_latent_vectors(directory: Path) -> None:
    pages = allocate_pages(read_model_config(directory), 4, 16, CPU, torch.float32)
    for layer in pages:
        layer.keys.normal_()
    PlainPageCopies(pages, 0).copy(np.array([3, 1]), np.array([0, 3]))
    for layer in pages:
        assert torch.equal(layer.keys[3], layer.keys[1])
        assert not torch.equal(layer.keys[0], layer.keys[3])
        assert torch.equal(layer.values, layer.keys[..., : layer.value_dim])


@pytest.mark.usefixtures("batch_invariant")
def test_a_sequence_goes_on_the_same_over_pages_that_another_computed(directory: Path) -> None:
    """What the prefix cache does."""
    runner, chooser = make_runner(directory), random.Random(4)
    for length in (17, 50, 96):
        prompt = [chooser.randrange(3, VOCAB_SIZE) for _ in range(length)]
        alone, over_blocks = Request(prompt, 10), Request(prompt, 10)
        Driver(runner, seed=0, idle=0.0).run(alone)
        runner.reset()
        driver = Driver(runner, seed=9, idle=0.0)
        over_blocks.prefix = driver.compute(prompt[: (length - 1) // 16 * 16])
        driver.run(over_blocks)
        assert over_blocks.output == alone.output
        runner.reset()


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize(("num_threads", "max_chunk"), [(1, 7), (2, 1), (3, 64)])
def test_logits_are_the_same_bits_alone_or_in_a_crowd_and_whole_or_in_chunks(
    directory: Path, num_threads: int, max_chunk: int
) -> None:
    decoder = make_decoder(directory, create_ops(CPU, torch.float32))
    pages = allocate_pages(decoder.config, 50, 16, CPU, torch.float32)
    chooser = random.Random(max_chunk)
    alone, crowd = texts(chooser), texts(chooser)
    for text in alone:
        compute(decoder, pages, [(text, text.num_left)])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    while unfinished := [text for text in crowd if text.num_left]:
        chosen = chooser.sample(unfinished, chooser.randint(1, len(unfinished)))
        compute(decoder, pages, [(text, chooser.randint(1, min(text.num_left, max_chunk))) for text in chosen])
    torch.set_num_threads(before)
    for text, expected in zip(crowd, alone, strict=True):
        assert torch.equal(torch.cat(text.logits), torch.cat(expected.logits))


def test_layers_that_predict_further_tokens_are_left_out(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    tensors, ops = load_file(directory / "model.safetensors"), ReferenceOps(CPU, torch.float32)
    further = {f"model.layers.3.{name}": torch.zeros(8) for name in ("enorm.weight", "self_attn.q_a_proj.weight")}
    save_file(tensors | further, tmp_path / "model.safetensors")
    make_decoder(tmp_path, ops)
    save_file(tensors | {"model.layers.4.enorm.weight": torch.zeros(8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"holds model\.layers\.4\.enorm\.weight, which"):
        make_decoder(tmp_path, ops)


class _Quantized(DummySource):
    """Quantizes the keys' and values' matrix to 8 bits, and turns it back into floats on request."""

    as_floats = False

    def weight(self, layer: str) -> Weight:
        weight = super().weight(layer)
        if not layer.endswith("kv_b_proj"):
            return weight
        assert isinstance(weight, torch.Tensor)
        quantized = Int8Weight.quantize(weight, quantize_activations=False)
        return quantized.dequantize() if self.as_floats else quantized


def test_a_quantized_matrix_of_keys_and_values_is_turned_into_floats(directory: Path) -> None:
    config, ops = read_model_config(directory), ReferenceOps(CPU, torch.float32)
    logits = []
    for as_floats in (False, True):
        source = _Quantized(config.parameters, CPU, torch.float32)
        source.as_floats = as_floats
        decoder, (text, *_) = load_decoder(config, ops, source, 256), texts(random.Random(0))[3:]
        compute(decoder, allocate_pages(config, 50, 16, CPU, torch.float32), [(text, text.num_left)])
        logits += text.logits
    assert torch.equal(*logits)
    # It would lose precision for nothing.
    assert not any(scheme.applies("model.layers.0.self_attn.kv_b_proj", False) for scheme in AT_LOAD.values())


def test_fp8_in_blocks_is_read_as_deepseek_publishes_it(directory: Path, tmp_path: Path) -> None:
    """Its config.json does not say that routers are in floats."""
    store, floats, blocks = fp8_in_blocks(24, 40, "weight_scale_inv"), {}, {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        floats[name] = blocks[name] = tensor
        if "_proj" in name:
            weight, parts = store(name, tensor)
            floats[name] = weight.dequantize()
            blocks |= {name.removesuffix("weight") + suffix: part for suffix, part in parts.items()}
    config, logits = json.loads((directory / "config.json").read_text()), []
    settings = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [24, 40]}
    for tensors, method in ((floats, None), (blocks, settings)):
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
        decoder, (text, *_) = make_decoder(tmp_path, ReferenceOps(CPU, torch.float32)), texts(random.Random(0))[3:]
        compute(decoder, allocate_pages(decoder.config, 50, 16, CPU, torch.float32), [(text, text.num_left)])
        logits += text.logits
    assert len(blocks) > len(floats)
    assert torch.equal(*logits)


@pytest.mark.usefixtures("batch_invariant")
def test_a_latent_vector_that_is_too_wide_for_the_kernels_is_refused_at_the_start() -> None:
    shapes = [AttentionShape(4, 1, dim, 512, 16, torch.float32, torch.float32) for dim in (576, 577)]
    CPUOps().prepare_attention(shapes[:1], 1, 1)
    with pytest.raises(ValueError, match="keys or values have 577 dimensions; at most 576"):
        CPUOps().prepare_attention(shapes, 1, 1)


def test_keys_of_kimi_k2s_config_json(tmp_path: Path) -> None:
    model = read(
        tmp_path, architectures=["DeepseekV3ForCausalLM"], model_type="kimi_k2", n_group=1, topk_group=1,
        n_routed_experts=384, num_hidden_layers=2, first_k_dense_replace=1, num_nextn_predict_layers=0,
        scoring_func="sigmoid", topk_method="noaux_tc", rope_theta=50_000.0, max_position_embeddings=131_072,
        rope_scaling={"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
                      "mscale_all_dim": 1.0, "beta_fast": 1.0, "beta_slow": 1.0},
    )  # fmt: skip
    assert isinstance(model.network, DeepSeekConfig)
    assert model.network.routing is not None
    assert model.network.routing.groups is None
    assert model.network.left_out == ()
    assert model.max_model_len == 131_072


def test_glm_rotates_half_of_each_head_unless_it_says_otherwise(tmp_path: Path) -> None:
    for values, rotary_dim in (({}, 64), ({"partial_rotary_factor": 0.25}, 32)):
        model = read(tmp_path, architectures=["Glm4MoeForCausalLM"], num_hidden_layers=2, head_dim=128, **values)
        assert isinstance(model.network, DeepSeekConfig)
        attention = model.network.layers[0].attention
        assert isinstance(attention, GroupedAttentionConfig)
        assert attention.rope.rotary_dim == rotary_dim


V2: dict[str, Any] = {"architectures": ["DeepseekV2ForCausalLM"], "num_experts_per_tok": 6}
V3: dict[str, Any] = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 4}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "topk_method": (V2 | {"topk_method": "noaux_tc"}, 'topk_method is "noaux_tc"; expected greedy or group_limited'),
    "norm_topk_prob": (V2 | {"norm_topk_prob": True}, "sets norm_topk_prob to true, which is not supported"),
    "scoring_func": (V3 | {"scoring_func": "softmax"}, 'scoring_func is "softmax"; expected sigmoid'),
    "n_group": (V3 | {"n_group": 7}, "n_group is 7; expected a divisor of 256 experts"),
    "groups of one": (V3 | {"n_group": 256}, "with at least 2 in each group"),
    "too few experts": (V3 | {"topk_group": 1, "num_experts_per_tok": 33}, "expected an integer from 1 to 32"),
    "moe_layer_freq": (V3 | {"moe_layer_freq": 2}, "moe_layer_freq is 2; expected 1"),
    "grouped heads": (V3 | {"num_key_value_heads": 8}, "latent attention has no groups"),
    "partial rope": (V3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor, which is not supported"),
    "layer types": (
        {"architectures": ["Glm4MoeLiteForCausalLM"], "num_hidden_layers": 2, "mlp_layer_types": ["dense", "thick"]},
        "expected dense or sparse for each layer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_network_does_not_compute_is_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    change, sentence = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, **change)
    assert sentence in str(refusal.value)
