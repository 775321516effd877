from __future__ import annotations

import pytest
import torch

from services.worker.ops import fallback_reason


@pytest.fixture
def batch_invariant() -> None:
    """Skips where only the reference operations are there, which promise nothing of the kind."""
    reason = fallback_reason(torch.device("cpu"), torch.float32)
    if reason is not None:
        pytest.skip(reason)
