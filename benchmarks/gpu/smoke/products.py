"""Tests matrix products in every weight format, for every class of row counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.smoke.oracle import DTYPES, draw, worst_error
from services.worker.ops.triton.linear import create_linear
from services.worker.ops.triton.skinny import TUNINGS, skinny
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.rows import quantize_rows_fp8, quantize_rows_int8
from services.worker.quantization.kinds.weight import QuantizedWeight, Weight

DEVICE = torch.device("cuda", 0)
# (outputs, inputs): Llama-3.1-8B's joined projections, a small model's, and one that is no multiple of a tile.
SHAPES = ((6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (576, 576), (1000, 1536))
OUTPUT_LAYER = (128_256, 4096)
# Row counts for the output layer, up to the most rows that a step samples. 2,048 rows would take 2 GB in float64.
OUTPUT_LAYER_ROWS = (1, 16, 17, 64, 100, 128, 300)
# Number of outputs that are computed in float64 at once: 0.5 GB of the output layer's weight.
EXACT_OUTPUTS = 16_384
TINY = ((48, 64),)
# Row counts: one of each class that kernels are compiled for (`ops/triton/tiles.py`), with and without a multiple of
# 16, and enough rows that weights are dequantized (`ops/triton/dequantize.py`).
ROWS = (1, 16, 17, 32, 33, 64, 100, 128, 300, 2048)
TINY_ROWS = (1, 17, 70, 257)

Quantize = Callable[[Tensor], Weight]


def int8(weight: Tensor) -> Weight:
    return Int8Weight.quantize(weight, quantize_activations=True)


def int8_alone(weight: Tensor) -> Weight:
    return Int8Weight.quantize(weight, quantize_activations=False)


def int8_in_groups(weight: Tensor) -> Weight:
    return Int8Weight.quantize(weight, quantize_activations=False, group_size=32 if weight.shape[1] % 32 == 0 else 16)


def fp8_alone(weight: Tensor) -> Weight:
    return Fp8Weight.quantize(weight, quantize_activations=False)


def int4(weight: Tensor) -> Weight:
    size = next(size for size in (128, 64, 32, 16) if weight.shape[1] % size == 0)
    return Int4Weight.quantize(weight, size)


def int4_float16_scales(weight: Tensor) -> Weight:
    return Int4Weight.quantize(weight.half(), 32 if weight.shape[1] % 32 == 0 else 16)


def int4_act_order(weight: Tensor) -> Weight:
    quantized = Int4Weight.quantize(weight.half(), 64 if weight.shape[1] % 64 == 0 else 16)
    return replace(quantized, input_order=torch.randperm(weight.shape[1], device=weight.device).int())


# Whether the output layer also has this format. Checkpoints leave it unquantized.
FORMS: dict[str, tuple[Quantize, bool]] = {
    "floats": (lambda weight: weight, True),
    "fp8 x fp8": (Fp8Weight.quantize, False),
    "fp8 alone": (fp8_alone, False),
    "int8 x int8": (int8, False),
    "int8 alone": (int8_alone, False),
    "int8 in groups": (int8_in_groups, False),
    "int4": (int4, False),
    "int4, float16 scales": (int4_float16_scales, False),
    "int4, act-order": (int4_act_order, False),
}
# Every format is served in both 16-bit types. float32 is tested for exactness.
TYPES_OF = {"floats": ("bf16", "fp16", "fp32"), "int4": ("bf16", "fp16", "fp32")}


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    found = {}
    for form in FORMS:
        for name in ("fp16", "fp32") if setting.dry_run else TYPES_OF.get(form, ("bf16", "fp16")):
            for invariant in (False, True):
                group = f"products {form} {name}" + (", batch-invariant" if invariant else "")
                found[group] = partial(_of_form, setting, form, name, invariant)
    for name in ("fp16",) if setting.dry_run else ("bf16", "fp16"):
        found[f"products skinny {name}"] = partial(_skinny, setting, name)
    return found


def _skinny(setting: Setting, name: str) -> Iterator[Case]:
    for n, k in TINY if setting.dry_run else SHAPES:
        yield Case(f"{n} x {k}, skinny, {name}", partial(_skinny_product, DTYPES[name], n, k))


def _skinny_product(dtype: torch.dtype, n: int, k: int) -> float:
    """Tests every stored tuning with and without a bias, and one row less than it is for."""
    weight = draw(n, k, dtype=dtype, device=DEVICE, scale=0.02)
    bias = draw(n, dtype=dtype, device=DEVICE)
    worst = 0.0
    for tuning in TUNINGS:
        for rows in {tuning.tiles.rows, max(1, tuning.tiles.rows - 1)}:
            x = draw(rows, k, dtype=dtype, device=DEVICE)
            expected = x.double() @ weight.double().t()
            worst = max(worst, worst_error(skinny(x, weight, None, tuning), expected))
            worst = max(worst, worst_error(skinny(x, weight, bias, tuning), expected + bias.double()))
    return worst


def _of_form(setting: Setting, form: str, name: str, batch_invariant: bool) -> Iterator[Case]:
    quantize, output_layer = FORMS[form]
    shapes = TINY if setting.dry_run else (*SHAPES, *((OUTPUT_LAYER,) if output_layer else ()))
    for n, k in shapes:
        if k % 32 and form.startswith("int4"):
            continue
        rows = TINY_ROWS if setting.dry_run else OUTPUT_LAYER_ROWS if (n, k) == OUTPUT_LAYER else ROWS
        run = partial(_product, quantize, DTYPES[name], n, k, rows, batch_invariant)
        yield Case(f"{n} x {k}, {form}, {name}" + (", batch-invariant" if batch_invariant else ""), run)


def _product(
    quantize: Quantize, dtype: torch.dtype, n: int, k: int, all_rows: tuple[int, ...], batch_invariant: bool
) -> float:
    """Tests a product with and without a bias, which are separate kernels."""
    stored = quantize(draw(n, k, dtype=dtype, device=DEVICE, scale=0.02))
    bias = draw(n, dtype=dtype, device=DEVICE)
    weight = stored if isinstance(stored, Tensor) else stored.dequantize()
    worst = 0.0
    for with_bias in (False, True):
        linear = create_linear(stored, bias if with_bias else None, DEVICE, dtype, batch_invariant=batch_invariant)
        for rows in all_rows:
            x = draw(rows, k, dtype=dtype, device=DEVICE)
            wide = _quantized_input(x, stored)
            expected = torch.cat([wide @ part.double().t() for part in torch.split(weight, EXACT_OUTPUTS)], dim=1)
            if with_bias:
                expected = expected + bias.double()
            worst = max(worst, worst_error(linear(x), expected))
    return worst


def _quantized_input(x: Tensor, weight: Weight) -> Tensor:
    """Returns the input in float64, rounded as the product rounds it."""
    if isinstance(weight, Tensor) or not _quantizes_input(weight):
        return x.double()
    q, scales = quantize_rows_int8(x) if isinstance(weight, Int8Weight) else quantize_rows_fp8(x)
    return q.double() * scales.double()[:, None]


def _quantizes_input(weight: QuantizedWeight) -> bool:
    return isinstance(weight, Int8Weight | Fp8Weight) and weight.quantize_activations
