"""The limit of a test's memory sees growth that an earlier peak would hide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.worker.memory import growth_below

MIB = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux resets the peak")
def test_growth_after_a_higher_peak_is_seen() -> None:
    np.ones(256 * MIB, np.uint8)
    with growth_below(64 * MIB):
        np.ones(MIB, np.uint8)
    with pytest.raises(AssertionError, match="a part took"), growth_below(64 * MIB, "a part"):
        np.ones(256 * MIB, np.uint8)
