"""What the numbers of a quantized weight mean, and that rounding, joining and choosing rows keep to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.worker.quantization.kinds.fp4 import E2M1, Fp4Weight
from services.worker.quantization.kinds.fp8 import Fp8Weight
from services.worker.quantization.kinds.int4 import Int4Weight
from services.worker.quantization.kinds.int8 import Int8Weight
from services.worker.quantization.kinds.rows import quantize_rows_fp8, quantize_rows_int8
from services.worker.quantization.kinds.weight import QuantizedWeight, Weight, join

ROWS, COLUMNS, GROUP = 6, 64, 32


def random_matrix(rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(rows, 1, generator=generator) * 4  # rows of different magnitudes
    return torch.randn(rows, columns, generator=generator) * spread


def in_order(weight: Tensor) -> Int4Weight:
    return Int4Weight.quantize(weight, GROUP)


def reordered(weight: Tensor) -> Int4Weight:
    order = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(7))
    plain = Int4Weight.quantize(weight[:, order], GROUP)
    return Int4Weight(plain.packed, plain.scales, plain.zero_points, order.to(torch.int32))


KINDS: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "fp8": Fp8Weight.quantize,
    "int8": lambda weight: Int8Weight.quantize(weight, True),
    "int8 in groups": lambda weight: Int8Weight.quantize(weight, False, GROUP),
    "int4": in_order,
    "int4 reordered": reordered,
    "fp4": Fp4Weight.quantize,
}


def element(weight: QuantizedWeight, row: int, column: int) -> float:
    """By the definition in its class, number by number."""
    if isinstance(weight, Fp8Weight):
        return float(weight.values[row, column]) * float(weight.scales[row])
    if isinstance(weight, Int8Weight):
        return int(weight.values[row, column]) * float(weight.scales[row, column // weight.group_size])
    if isinstance(weight, Fp4Weight):
        code = int(weight.packed[row, column // 2]) >> (4 * (column % 2)) & 15
        return E2M1[code] * 2.0 ** (int(weight.exponents[row, column // 32]) - 127)
    k = column if weight.input_order is None else weight.input_order.tolist().index(column)
    q = int(weight.packed[row, k // 2]) >> (4 * (k % 2)) & 15
    group = k // weight.group_size
    return (q - int(weight.zero_points[row, group])) * float(weight.scales[row, group])


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_what_its_class_says(kind: str) -> None:
    weight = KINDS[kind](random_matrix())
    dequantized = weight.dequantize()
    assert dequantized.dtype is torch.float32
    assert dequantized.shape == weight.shape == (ROWS, COLUMNS)
    for row in range(ROWS):
        for column in range(COLUMNS):
            assert dequantized[row, column] == torch.tensor(element(weight, row, column))


@pytest.mark.parametrize(("kind", "share"), [("fp8", 1 / 16), ("int8", 1 / 254), ("int4", 1 / 15)])
def test_rounding_is_to_the_nearest(kind: str, share: float) -> None:
    """Half a step at most: of an fp8 number a sixteenth of itself, of int8 and int4 half of the group's step."""
    matrix = random_matrix(40, 256)
    error = (KINDS[kind](matrix).dequantize() - matrix).abs()
    if kind == "fp8":
        smallest = matrix.abs().amax(1, keepdim=True) / 448 * 2**-10  # half a subnormal step
        assert (error <= torch.maximum(matrix.abs() * share, smallest) * 1.001).all()
    elif kind == "int8":
        assert (error <= matrix.abs().amax(1, keepdim=True) * share * 1.001).all()
    else:
        groups = matrix.view(40, -1, GROUP)
        step = (groups.amax(-1) - groups.amin(-1)) * share
        # The zero point is rounded too: half a step at an extreme, and half a step in between.
        assert (error.view(40, -1, GROUP) <= step[..., None] * 1.001).all()
        assert error.mean() < step.mean() * 0.3


def test_4_bit_floats_are_rounded_to_the_nearest_unless_they_are_beyond_the_largest() -> None:
    """A group's largest magnitude is 4 to 8 times its scale; those over 6 times become 6 times."""
    matrix = random_matrix(40, 256)
    weight = Fp4Weight.quantize(matrix)
    scaled = (matrix.view(40, -1, GROUP) / weight.scales[..., None]).flatten(1)
    got = (weight.dequantize().view(40, -1, GROUP) / weight.scales[..., None]).flatten(1)
    values = torch.tensor(E2M1)
    best = (scaled[..., None] - values).abs().amin(-1)
    assert torch.equal((scaled - got).abs(), best)
    largest = scaled.view(40, -1, GROUP).abs().amax(-1)
    assert (largest >= 4).all()
    assert (largest < 8).all()


@pytest.mark.parametrize("kind", KINDS)
def test_joined_projections_are_their_rows_one_after_another(kind: str) -> None:
    first, second = KINDS[kind](random_matrix(seed=1)), KINDS[kind](random_matrix(4, seed=2))
    joined = join([first, second])
    assert joined is not None
    assert not isinstance(joined, Tensor)
    assert torch.equal(joined.dequantize(), torch.cat((first.dequantize(), second.dequantize())))


def test_what_is_stored_differently_is_not_joined() -> None:
    matrix = random_matrix()
    each = [KINDS[kind](matrix) for kind in KINDS]
    pairs: list[tuple[Weight, Weight]] = [(matrix, weight) for weight in each]
    pairs += [(first, second) for first in each for second in each if first is not second]
    pairs += [
        (Fp8Weight.quantize(matrix), Fp8Weight.quantize(matrix, quantize_activations=False)),
        (Int8Weight.quantize(matrix, True), Int8Weight.quantize(matrix, False)),
        (Int4Weight.quantize(matrix, 32), Int4Weight.quantize(matrix, 64)),
    ]
    for first, second in pairs:
        assert join([first, second]) is None
    assert join([matrix, matrix]) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_chosen_in_any_order_and_number(kind: str) -> None:
    weight = KINDS[kind](random_matrix())
    ids = torch.tensor([5, 0, 0, 3])
    assert torch.equal(weight.select_rows(ids).dequantize(), weight.dequantize()[ids])


def test_quantized_activations_want_one_scale_per_output() -> None:
    with pytest.raises(ValueError, match="one scale per output"):
        Int8Weight.quantize(random_matrix(), quantize_activations=True, group_size=GROUP)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_each_row_reaches_the_ends_of_its_type_and_never_passes_them(numbers: list[float], dtype: str) -> None:
    x = torch.tensor([numbers, [0.0] * len(numbers)], dtype=getattr(torch, dtype))
    for quantize, largest in ((quantize_rows_fp8, 448), (quantize_rows_int8, 127)):
        q, scales = quantize(x)
        assert torch.isfinite(q.float()).all()
        assert not q[1].float().any()
        magnitude = x[0].float().abs().max()
        if magnitude > 1e-9:
            assert q[0].float().abs().max() == largest
            torch.testing.assert_close(scales[0] * largest, magnitude, rtol=1e-6, atol=0)


def test_a_row_is_multiplied_by_one_quotient() -> None:
    """The reciprocal of the largest magnitude, times 127, is another number than 127 over the largest."""
    x = torch.randn(400, 9000, generator=torch.Generator().manual_seed(0)).half().float()
    quotients = (np.float32(127) / x.abs().amax(1).numpy())[:, None]
    assert torch.equal(quantize_rows_int8(x)[0], torch.from_numpy(np.rint(x.numpy() * quotients).astype(np.int8)))
    assert (x.abs().amax(1).reciprocal().numpy() * np.float32(127) != quotients[:, 0]).any()


def test_halves_are_rounded_to_even() -> None:
    q, _ = quantize_rows_int8(torch.tensor([[127.0, 0.5, 1.5, -2.5, -3.5]]))
    assert q.tolist() == [[127, 0, 2, -2, -4]]
    q, _ = quantize_rows_fp8(torch.tensor([[448.0, 17.0, 19.0, -17.0]]))  # fp8 has 16, 18 and 20
    assert q.float().tolist() == [[448.0, 16.0, 20.0, -16.0]]
