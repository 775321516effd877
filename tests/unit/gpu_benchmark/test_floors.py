"""What the benchmark holds its figures against."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.floors import Floors
from benchmarks.gpu.roofline import Ceilings
from benchmarks.gpu.trace import GROUPS, Activity, gaps, group_of, span
from services.worker.ops import triton as triton_ops
from services.worker.quantization.at_load import AT_LOAD

CEILINGS = Ceilings(read=4e12, copy=4e12, rates={"bf16": 8e14, "fp8": 16e14})


def floors(quantization: str | None = None) -> Floors:
    at_load = AT_LOAD.get(quantization or "")
    return Floors(Bench(quantization=quantization).model, CEILINGS, torch.bfloat16, torch.bfloat16, at_load)


def test_a_decode_step_reads_the_weights_but_the_embeddings_and_every_key_and_value() -> None:
    """Llama-3.1-8B: 8.03 billion weights, 0.525 of them embeddings; 128 KiB of KV per token in 16 bits."""
    weights = 8_030_261_248 - 128_256 * 4096
    assert floors().weight_bytes == 2 * weights
    assert floors().decode(32, 1000) == pytest.approx((2 * weights + 32 * 1000 * 131_072) / 4e12)


def test_quantized_layers_are_read_in_their_own_form() -> None:
    head, norms = 128_256 * 4096, 65 * 4096
    layers = 8_030_261_248 - 2 * head - norms
    assert floors("fp8").weight_bytes == pytest.approx(layers + 2 * (head + norms), rel=1e-3)
    assert floors("awq").weight_bytes == pytest.approx(layers * (0.5 + 3 / 128) + 2 * (head + norms), rel=1e-3)


def test_a_prompt_computes_every_layer_for_every_token_and_the_output_for_one() -> None:
    layers = 8_030_261_248 - 2 * 128_256 * 4096
    attention = 4 * 32 * 128 * 32 * (1000 * 1001 / 2)
    output = 2 * 128_256 * 4096
    assert floors().prefill(1000) == pytest.approx((2 * layers * 1000 + attention + output) / 8e14)
    assert floors("fp8").prefill(1000) == pytest.approx(2 * layers * 1000 / 16e14 + (attention + output) / 8e14)
    assert floors("awq").prefill(1000) == floors().prefill(1000)


def test_a_ratio_is_what_was_reached_of_what_the_hardware_allows() -> None:
    assert Figure("a time", 2.0, "ms", 1.5).ratio == 0.75
    assert Figure("a rate", 30.0, "tokens/s", 40.0).ratio == 0.75
    assert Figure("not measured", None, "ms", 1.0).ratio is None
    assert Figure("no floor", 1.0, "ms").ratio is None


def test_idle_time_is_what_no_activity_covers() -> None:
    ran = [Activity("a", 0, 10), Activity("b", 2, 4), Activity("c", 12, 15), Activity("d", 15, 20)]
    assert gaps(ran) == [2]
    assert span(ran) == 20


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("decode_attention", "attention"),
        ("_ZN5flash15flash_fwd_kernel", "attention"),
        ("rms_norm_kernel", "norms"),
        ("rope_and_write_kv_kernel", "rope and KV write"),
        ("activation_kernel", "activation"),
        ("nvjet_tst_128x64_64x10_2x1_v_bz_TNT", "products"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>", "products"),
        ("matmul_kernel", "products"),
        ("top_tiles_kernel", "sampling"),
        ("draw_kernel", "sampling"),
        ("Memcpy HtoD (Pinned -> Device)", "copies and fills"),
        ("slot_mapping_kernel", "copies and fills"),
        ("void at::native::elementwise_kernel", "other"),
    ],
)
def test_kernels_are_told_apart_by_their_names(name: str, group: str) -> None:
    assert group in GROUPS
    assert group_of(name) == group


def test_every_kernel_of_ours_belongs_to_a_group() -> None:
    kernels = set()
    for info in pkgutil.walk_packages(triton_ops.__path__, f"{triton_ops.__name__}."):
        variants = getattr(importlib.import_module(info.name), "variants", tuple)
        kernels |= {variant.kernel.__name__ for variant in variants()}
    assert "four_bit_kernel" in kernels
    assert not {kernel for kernel in kernels if group_of(kernel) == "other"}
