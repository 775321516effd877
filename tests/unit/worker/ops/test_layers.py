"""All layers in one call: the bits of one operation after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.models.decoders.llama import Llama
from services.worker.ops.cpu.layers import FusedLayers
from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.cpu.structs import STRUCTURES
from services.worker.ops.interface import Layer, RunLayers
from services.worker.plan.sampling_params import SamplingParams
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.weight import Weight
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_decoder, make_runner, save_model


class OneByOne(CPUOps):
    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        return None


class InBytes(CPUOps):
    """Every projection in 8 bits."""

    def linear(self, weight: Weight, bias: Tensor | None = None):  # type: ignore[no-untyped-def]
        assert isinstance(weight, Tensor)
        return super().linear(Int8Weight.quantize(weight, quantize_activations=True), bias)


class InBytesOneByOne(OneByOne, InBytes):
    pass


def test_structures_are_as_c_lays_them_out(cpu: CPUOps) -> None:
    for index, structure in enumerate(STRUCTURES):
        assert cpu._library.functions.quire_struct_bytes(index) == len(bytes(structure()))


@pytest.mark.parametrize(("fused", "one_by_one"), [(CPUOps, OneByOne), (InBytes, InBytesOneByOne)])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_logprobs_are_the_same_bits(
    tmp_path: Path, family: str, fused: type[CPUOps], one_by_one: type[CPUOps], levels: list[str]
) -> None:
    """Biases, norms of heads, windows; mixed batches, some of whose rows are not sampled."""
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1} if family != "Llama" else {}
    save_model(tmp_path, family, num_hidden_layers=3, **window)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 199, (length,), generator=generator).tolist() for length in (1, 40, 70, 7)]
    seen = []
    for kind in (fused, one_by_one):
        requests = [Request(prompt, 6, SamplingParams(temperature=0.0, logprobs=20)) for prompt in prompts]
        Driver(make_runner(tmp_path, ops=kind(levels[-1])), seed=3, max_chunk=16).run(*requests)
        seen.append([(request.output, request.logprobs) for request in requests])
    assert seen[0] == seen[1]


def test_layers_that_cannot_be_joined_run_one_by_one(cpu: CPUOps, tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    network = make_decoder(tmp_path, cpu).network
    assert isinstance(network, Llama)
    assert isinstance(network._run_layers, FusedLayers)
    assert FusedLayers.takes(network._layers)
    other = replace(network._layers[0], qkv=lambda x: x)
    assert not FusedLayers.takes([other, *network._layers[1:]])
    assert cpu.fuse_layers([other], network._norm) is None
