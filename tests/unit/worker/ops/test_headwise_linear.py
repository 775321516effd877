"""The product of each head with a weight of its own: that of one `linear` per head, bit for bit."""

from __future__ import annotations

import pytest
import torch

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.reference import ReferenceOps

SHAPES = [(2, 512, 128), (5, 128, 512), (3, 33, 1301), (1, 1, 1), (16, 16, 24)]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 9, 131])
def test_equals_one_product_per_head_in_any_crowd(
    cpu: CPUOps,
    exact: ReferenceOps,
    generator: torch.Generator,
    threads: int,
    heads: int,
    out_features: int,
    in_features: int,
    rows: int,
    half: bool,
) -> None:
    weight = torch.randn(heads, out_features, in_features, generator=generator)
    weight = weight.bfloat16() if half else weight
    x = torch.randn(rows, heads, in_features + 7, generator=generator)[..., 3:-4]  # a view of a wider projection
    got, by_head = cpu.headwise_linear(weight)(x), list(map(cpu.linear, weight))
    for head, linear in enumerate(by_head):
        assert torch.equal(got[:, head], linear(x[:, head].contiguous()))
    if rows:
        assert torch.equal(cpu.headwise_linear(weight)(x[-1:]), got[-1:])
    expected = exact.headwise_linear(weight)(x.double())
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5 * in_features**0.5)


def test_what_c_would_misread_is_refused(cpu: CPUOps) -> None:
    linear = cpu.headwise_linear(torch.zeros(2, 5, 4))
    for bad in (torch.zeros(3, 2, 5), torch.zeros(3, 8), torch.zeros(3, 2, 4).double(), torch.zeros(3, 2, 8)[..., ::2]):
        with pytest.raises(ValueError, match="headwise linear needs"):
            linear(bad)
    with pytest.raises(ValueError, match="weights of heads"):
        cpu.headwise_linear(torch.zeros(5, 4))
