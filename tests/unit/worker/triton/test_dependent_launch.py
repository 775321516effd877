"""Dependent launch: when it is on, what the compiler makes of it, and that a chain of kernels computes the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.ops.interface import Activation
from services.worker.ops.triton import dependent_launch
from services.worker.ops.triton.activation import gated_activation
from services.worker.ops.triton.dependent_launch import (
    MOST_SEQUENCES,
    OFF,
    ON,
    VARIABLE,
    launch_arguments,
    launches_of,
    most_sequences,
)
from services.worker.ops.triton.eight_bit import eight_bit
from services.worker.ops.triton.quantize_rows import quantize_rows
from services.worker.ops.triton.rms_norm import add_rms_norm
from services.worker.ops.triton.skinny import skinny
from services.worker.ops.triton.split_k import scratch
from tests.unit.worker.triton.conftest import HAS_GPU
from tests.unit.worker.triton.random_tensors import draw


@pytest.fixture(autouse=True)
def undecided() -> Iterator[None]:
    """Lets each test read the environment again."""
    dependent_launch._most_sequences.cache_clear()
    yield
    dependent_launch._most_sequences.cache_clear()


def test_the_variable_is_a_number_of_sequences() -> None:
    assert most_sequences({}) == MOST_SEQUENCES
    assert most_sequences({VARIABLE: "0"}) == 0
    assert most_sequences({VARIABLE: "16"}) == 16
    for wrong in ("on", "-1", "", "²"):
        with pytest.raises(ValueError, match="must be a number of sequences"):
            most_sequences({VARIABLE: wrong})


def test_only_the_launches_of_few_sequences_are_dependent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_launch, "_most_sequences", lambda: 2)
    for count, expected in ((1, ON), (2, ON), (3, OFF)):
        with launches_of(count):
            assert launch_arguments() == expected
        assert launch_arguments() == OFF
    with pytest.raises(RuntimeError), launches_of(1):
        raise RuntimeError
    assert launch_arguments() == OFF


@pytest.mark.skipif(HAS_GPU, reason="is about the interpreter")
def test_the_interpreter_has_no_dependent_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "9")
    with launches_of(1):
        assert launch_arguments() == OFF


# Compiles one variant of each kernel that takes PDL. Prints the kernel's name, and the instructions that access global
# memory or order kernels.
COMPILING = """
import importlib, re, sys
from triton import knobs
from services.worker.ops.triton import dependent_launch
from services.worker.ops.triton.compile import build, tasks

knobs.cache.dir, capability, only = sys.argv[1], int(sys.argv[2]), sys.argv[4]
dependent_launch._arguments = dependent_launch.ON if sys.argv[3] == "on" else dependent_launch.OFF
pattern = r"(griddepcontrol[.][a-z_]+|prefetch|(?:ld|st|atom|red)[.][a-z.]*global|cp[.]async[a-z.]*global)"
kernels = {}
for module in dict.fromkeys(task.module for task in tasks()):
    for variant in importlib.import_module(module).variants():
        if "PDL" in variant.kernel.arg_names and only in variant.kernel.__name__ and capability in variant.capabilities:
            kernels.setdefault(variant.kernel.__name__, variant)
for name, variant in kernels.items():
    print(name, *re.findall(pattern, build(variant, capability).asm["ptx"]))
"""


def instructions(capability: int, dependent: str, cache: Path, only: str = "") -> dict[str, list[str]]:
    """`dependent`: "on" or "off"."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-c", COMPILING, str(cache), str(capability), dependent, only],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return {name: found for name, *found in map(str.split, result.stdout.splitlines())}


def test_kernels_wait_before_they_touch_what_kernels_write(tmp_path: Path) -> None:
    kernels = instructions(90, "on", tmp_path)
    assert kernels.keys() == {
        "activation_kernel", "decode_attention", "eight_bit_kernel", "eight_bit_weights_kernel",
        "fill_last_tokens_kernel", "four_bit_kernel", "gated_activation_quantized_kernel",
        "gemv_kernel", "matmul_kernel", "quantize_rows_kernel", "rms_norm_kernel", "rope_and_write_kv_kernel",
        "slot_mapping_kernel", "tensor_core_kernel",
    }  # fmt: skip
    products = ("gemv_kernel", "tensor_core_kernel", "eight_bit_kernel", "eight_bit_weights_kernel", "four_bit_kernel")
    before = {**dict.fromkeys(products, "prefetch"), "rms_norm_kernel": "ld.global"}  # the gain
    late = {*products, "matmul_kernel", "decode_attention"}
    launch, wait = "griddepcontrol.launch_dependents", "griddepcontrol.wait"
    for name, found in kernels.items():
        assert (found.count(launch), found.count(wait)) == (1, 1), name
        at = found.index(wait)
        assert (found.index(launch) > at) == (name in late), name
        assert set(found[:at]) - {launch} == ({before[name]} if name in before else set()), name
        assert "st.global" in found[at:], name


@pytest.mark.parametrize("capability", [80, 90])
def test_without_dependent_launch_no_kernel_waits(capability: int, tmp_path: Path) -> None:
    kernels = instructions(capability, "off", tmp_path, only="gemv")
    assert kernels.keys() == {"gemv_kernel"}
    assert "st.global" in kernels["gemv_kernel"]
    assert not any(one.startswith(("griddepcontrol", "prefetch")) for one in kernels["gemv_kernel"])


FEATURES, HIDDEN, LAYERS, REPLAYS = 4096, 6144, 200, 5
Product = Callable[[Tensor], Tensor]


def sixteen_bits(n: int, k: int, device: torch.device, seed: int) -> Product:
    values = draw(n, k, dtype=torch.bfloat16, device=device, seed=seed) / k**0.5
    return lambda x: skinny(x, values, None)


def eight_bits(n: int, k: int, device: torch.device, seed: int) -> Product:
    """Quantizes x to int8 before the product."""
    values = (draw(n, k, dtype=torch.float32, device=device, seed=seed) * 32).round().clamp(-127, 127).to(torch.int8)
    scales = torch.full((n,), 1 / 32 / k**0.5, device=device)

    def product(x: Tensor) -> Tensor:
        q, row_scales = quantize_rows(x, torch.int8)
        return eight_bit(q, values, scales, row_scales, None, x.dtype)

    return product


def chain(x: Tensor, gain: Tensor, gate_up: Product, down: Product, layers: int) -> list[Tensor]:
    """Computes norm, product, activation and product, `layers` times. Each layer adds the previous layer's output to
    the residual. Layers reuse the memory of earlier layers. Returns the layers' outputs, and the residual."""
    residual, outputs = x.clone(), [torch.zeros_like(x)]
    for _ in range(layers):
        normed = add_rms_norm(outputs[-1], residual, gain, 1e-5)
        outputs.append(down(gated_activation(gate_up(normed), Activation.SILU)))
    return [*outputs, residual]


@pytest.mark.skipif(not HAS_GPU, reason="only GPUs launch kernels dependently")
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("product", [sixteen_bits, eight_bits])
def test_a_chain_of_kernels_has_the_same_bits(
    device: torch.device,
    rows: int,
    product: Callable[[int, int, torch.device, int], Product],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a recorded graph, as decode steps run."""
    if torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("the device has no dependent launch")
    x = draw(rows, FEATURES, dtype=torch.bfloat16, device=device)
    gain = draw(FEATURES, dtype=torch.bfloat16, device=device, seed=1)
    products = product(2 * HIDDEN, FEATURES, device, 2), product(FEATURES, HIDDEN, device, 3)
    scratch(device)
    expected: list[Tensor] = []
    for arguments in (OFF, ON):
        monkeypatch.setattr(dependent_launch, "_arguments", arguments)
        chain(x, gain, *products, 1)  # compiles the kernels
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = chain(x, gain, *products, LAYERS)
        for _ in range(REPLAYS):
            for tensor in results:
                tensor.fill_(torch.nan)
            graph.replay()
            expected = expected or [tensor.clone() for tensor in results]
            for got, first in zip(results, expected, strict=True):
                assert not got.isnan().any()
                assert torch.equal(got, first)
