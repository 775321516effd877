"""The GEMM of batch-invariant mode."""

from __future__ import annotations

import pytest
import torch

from services.worker.ops.triton.ops import TritonOps
from tests.unit.worker.triton.random_tensors import draw

# Triton's interpreter multiplies no bfloat16.
HALF_AND_SINGLE = [torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (64, 128), (100, 257), (576, 320)])
@pytest.mark.parametrize("m", [1, 70])
def test_products(device: torch.device, dtype: torch.dtype, m: int, n: int, k: int, bias: bool) -> None:
    ops = TritonOps(device, dtype, batch_invariant=True)
    x = draw(m, k, dtype=dtype, device=device)
    weight = draw(n, k, dtype=dtype, device=device, seed=1) / k**0.5
    added = draw(n, dtype=dtype, device=device, seed=2) if bias else None
    expected = x.double() @ weight.double().t() + (0 if added is None else added.double())
    got = ops.linear(weight, added)(x)
    assert got.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_a_row_has_the_same_bits_alone_and_in_any_crowd(device: torch.device) -> None:
    linear = TritonOps(device, torch.float32, batch_invariant=True).linear(
        draw(130, 200, dtype=torch.float32, device=device)
    )
    x = draw(150, 200, dtype=torch.float32, device=device, seed=1)
    together = linear(x)
    for rows in (slice(0, 1), slice(63, 65), slice(100, 150)):
        assert torch.equal(linear(x[rows]), together[rows])


def test_many_row_tiles_each_are_computed_once(device: torch.device) -> None:
    """More tiles of rows than walk the columns together, and a last group that is not full."""
    linear = TritonOps(device, torch.float32, batch_invariant=True).linear(torch.eye(80, device=device))
    x = draw(64 * 11 + 3, 80, dtype=torch.float32, device=device)
    assert torch.equal(linear(x), x)


def test_rows_may_be_a_slice_of_wider_ones(device: torch.device) -> None:
    linear = TritonOps(device, torch.float32, batch_invariant=True).linear(torch.eye(16, device=device))
    x = draw(5, 40, dtype=torch.float32, device=device)
    assert torch.equal(linear(x[:, 8:24]), x[:, 8:24])
    with pytest.raises(ValueError, match=r"\[m, 16\] with contiguous rows"):
        linear(x)


def test_embedding_reads_the_weight_of_a_linear(device: torch.device) -> None:
    ops = TritonOps(device, torch.float32)
    weight = draw(10, 6, dtype=torch.float32, device=device)
    ids = torch.tensor([3, 0, 9, 3], device=device)
    assert torch.equal(ops.embedding(ids, ops.linear(weight)), weight[ids])
    with pytest.raises(TypeError, match="linear"):
        ops.embedding(ids, weight)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_each_head_is_multiplied_by_a_matrix_of_its_own(
    device: torch.device, dtype: torch.dtype, batch_invariant: bool
) -> None:
    weight = draw(3 * 20, 24, dtype=dtype, device=device, seed=1).view(3, 20, 24) / 5
    x = draw(7, 3 * 40, dtype=dtype, device=device).view(7, 3, 40)[..., 8:32]
    expected = torch.einsum("thi,hoi->tho", x.double(), weight.double())
    got = TritonOps(device, dtype, batch_invariant=batch_invariant).headwise_linear(weight)(x)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
