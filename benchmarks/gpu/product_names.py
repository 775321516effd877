"""Finds the names of the kernels that compute matrix products, whichever cuBLAS selects: gemv, split-K, nvjet and
others.

The profiler does not see operators in a recorded graph. So the model's products first run on their own, with the same
numbers of rows, and the profiler reports which kernels torch's product operators launch. Our own kernels, and all
kernels on a machine without the GPU profiler, are recognized by their names (`trace.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.products import matrices, quantized
from services.worker.ops.triton.linear import create_linear
from services.worker.quantization.kinds.weight import Weight

OPERATORS = frozenset(
    ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv", "aten::linear",
     "aten::matmul", "aten::_scaled_mm", "aten::_int_mm", "aten::_addmm_activation")
)  # fmt: skip


class Event(Protocol):
    """An event of torch's profiler: an operator, and the kernels that it launched itself."""

    name: str
    kernels: list[Any]


def launched_by_products(events: Iterable[Event]) -> frozenset[str]:
    """Returns the names of product kernels. Copies and fills that an operator also launches are excluded."""
    return frozenset(
        kernel.name
        for event in events
        if event.name in OPERATORS
        for kernel in event.kernels
        if not kernel.name.lower().startswith(("memcpy", "memset"))
    )


def product_names(bench: Bench, row_counts: Sequence[int]) -> frozenset[str]:
    """Returns the kernels of the model's products for each of the row counts. Empty without the GPU profiler."""
    model = bench.model
    shapes = [*matrices(model).values(), (model.vocab_size, model.hidden_size)]
    with profile(activities=_activities(bench)) as profiler:
        for index, (n, k) in enumerate(shapes):
            zeros = torch.zeros(n, k, device=bench.device, dtype=bench.dtype)
            is_quantized = bench.quantization is not None and index < len(shapes) - 1  # the output layer is not
            weight: Weight = quantized(bench, zeros) if is_quantized else zeros
            linear = create_linear(weight, None, bench.device, bench.dtype, batch_invariant=False)
            for rows in row_counts:
                linear(torch.zeros(rows, k, device=bench.device, dtype=bench.dtype))
        if bench.on_gpu:
            torch.cuda.synchronize()
    return launched_by_products(profiler.events() or ())


def _activities(bench: Bench) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_gpu else [])]
