from __future__ import annotations

import pytest
import torch

from services.worker.startup.create_ops import fallback_reason


@pytest.fixture
def batch_invariant() -> None:
    """Skips the test if only the reference operations are available, whose results depend on the batch."""
    reason = fallback_reason(torch.device("cpu"), torch.float32)
    if reason is not None:
        pytest.skip(reason)
