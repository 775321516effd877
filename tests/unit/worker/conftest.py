from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from services.worker.ops import fallback_reason


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny models are computed fastest on one thread, above all where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def batch_invariant() -> None:
    """Skips where only the reference operations are there, which promise nothing of the kind."""
    reason = fallback_reason(torch.device("cpu"), torch.float32)
    if reason is not None:
        pytest.skip(reason)
