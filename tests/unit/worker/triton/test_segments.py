"""Sums of the rows of segments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.ops import TritonOps
from tests.unit.worker.triton.random_tensors import DTYPES, draw

EXACT = ReferenceOps(torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [8, 300])
def test_each_segment_adds_to_its_own_total(device: torch.device, dtype: torch.dtype, features: int) -> None:
    ops, starts = TritonOps(device, dtype), np.array([0, 4, 4, 9])
    x, totals = (
        draw(9, features, dtype=dtype, device=device),
        draw(3, features, dtype=torch.float32, device=device, seed=1),
    )
    expected = totals.double().cpu()
    EXACT.add_segments(expected, x.double().cpu(), starts)
    in_parts = totals.clone()
    ops.add_segments(totals, x, starts)
    torch.testing.assert_close(totals.double().cpu(), expected, rtol=1e-6, atol=1e-5)
    ops.add_segments(in_parts, x[:6], np.array([0, 4, 4, 6]))
    ops.add_segments(in_parts, x[6:].contiguous(), np.array([0, 0, 0, 3]))
    assert torch.equal(in_parts, totals)


def test_layouts_that_the_kernel_would_misread_are_refused(device: torch.device) -> None:
    ops = TritonOps(device, torch.float32)
    with pytest.raises(ValueError, match="contiguous"):
        ops.add_segments(torch.zeros(1, 8, device=device), torch.zeros(4, 16, device=device)[:, ::2], np.array([0, 4]))
    with pytest.raises(ValueError, match="segments"):
        ops.add_segments(torch.zeros(2, 8, device=device), torch.zeros(4, 8, device=device), np.array([0, 4]))
