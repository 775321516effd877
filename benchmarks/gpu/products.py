"""Measures each matrix product of a layer alone, by number of rows, unquantized and in the format of --quantization.

Unquantized products are measured with sums in float32, as the worker computes them, and with torch's default.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.shapes import network
from services.worker.models.config import ModelConfig
from services.worker.ops.triton.dequantize import Scratch
from services.worker.ops.triton.linear import create_linear
from services.worker.ops.triton.quantized_linear import computes_with
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.weight import Weight

ROWS = (1, 8, 32, 128, 256, 2048, 8192)
ROTATED_BYTES = 256 << 20
REPEATS = 10

Work = Callable[[], Tensor]


def matrices(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns the (outputs, inputs) of a layer's products."""
    sizes = network(model)
    heads, kv_heads = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    return {
        "qkv": (heads + 2 * kv_heads, model.hidden_size),
        "output": (model.hidden_size, heads),
        "gate and up": (2 * sizes.intermediate_size, model.hidden_size),
        "down": (model.hidden_size, sizes.intermediate_size),
    }


def measure(bench: Bench) -> Iterator[Figure]:
    for name, (n, k) in matrices(bench.model).items():
        weight = torch.randn(n, k, device=bench.device, dtype=bench.dtype) * 0.02
        forms: dict[str, Weight] = {bench.dtype_name: weight}
        if bench.quantization is not None:
            forms[bench.quantization] = quantized(bench, weight)
        for form, stored in forms.items():
            yield from _by_rows(bench, f"{name} {n} x {k}, {form}", stored)
            if isinstance(stored, Tensor):
                with split_sums_in_16_bits():
                    yield from _by_rows(bench, f"{name} {n} x {k}, {form}, sums in 16 bits", stored)
            invariant = f"{name} {n} x {k}, {form}, batch-invariant"
            yield from _by_rows(bench, invariant, stored, batch_invariant=True)


@contextmanager
def split_sums_in_16_bits() -> Iterator[None]:
    """Uses torch's default, with which cuBLAS may round the partial sums of a split product to 16 bits. The worker
    forbids this (see `services.worker.startup.gpu.select_gpu`); the difference in time is the cost of that."""
    products = torch.backends.cuda.matmul
    before = products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction
    products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = True
    try:
        yield
    finally:
        products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction = before


def quantized(bench: Bench, weight: Tensor) -> Weight:
    """Converts the weight to the format of --quantization."""
    floors = bench.floors
    if floors.at_load is not None:
        return floors.at_load.form.quantize(weight)
    assert bench.model.quantization is not None
    return bench.model.quantization.format_of("model.layers.0.mlp.up_proj").quantize(weight)


def _by_rows(bench: Bench, name: str, weight: Weight, *, batch_invariant: bool = False) -> Iterator[Figure]:
    """Measures a product by number of rows, on several copies of the weight, so that none is in the L2 cache."""
    if not isinstance(weight, Tensor) and not computes_with(weight, bench.device):
        yield Figure(name, None, "us", note="the GPU kernels do not support this format")
        return
    num_copies = 1 if bench.dry_run else 1 + ROTATED_BYTES // bytes_of(weight)
    scratch = Scratch(bench.device, bench.dtype)  # shared, as in a model
    linears = [
        create_linear(
            copy.deepcopy(weight), None, bench.device, bench.dtype, batch_invariant=batch_invariant, scratch=scratch
        )
        for _ in range(num_copies)
    ]
    n, k = weight.shape
    for rows in (1, 3) if bench.dry_run else ROWS:
        x = torch.randn(rows, k, device=bench.device, dtype=bench.dtype)
        works: list[Work] = [partial(linear, x) for linear in linears]
        taken = bench.clock.in_graph(works, REPEATS)
        moved = bytes_moved(bench, weight, rows)
        note = f"{2 * rows * n * k / taken / 1e12:.4g} TFLOP/s, {moved / taken / 1e9:,.0f} GB/s"
        yield Figure(f"{name}, {rows} rows", taken * 1e6, "us", floor(bench, weight, rows) * 1e6, note)


def bytes_moved(bench: Bench, weight: Weight, rows: int) -> int:
    n, k = weight.shape
    return bytes_of(weight) + rows * (n + k) * bench.dtype.itemsize


def floor(bench: Bench, weight: Weight, rows: int) -> float:
    """Returns the shortest possible seconds of a product."""
    (n, k), ceilings = weight.shape, bench.ceilings
    rate = ceilings.rates.get(_matrix_type(weight), ceilings.rates["bf16"])
    return max(bytes_moved(bench, weight, rows) / ceilings.read, 2 * rows * n * k / rate)


def _matrix_type(weight: Weight) -> str:
    """Returns the type of the matrix units that compute with this weight."""
    if isinstance(weight, Fp8Weight | Int8Weight) and weight.quantize_activations:
        return "fp8" if isinstance(weight, Fp8Weight) else "int8"
    return "bf16"


def bytes_of(weight: Weight) -> int:
    if isinstance(weight, Tensor):
        return weight.nbytes
    values = (getattr(weight, field.name) for field in fields(weight))
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
