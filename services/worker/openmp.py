"""How torch's OpenMP threads wait."""

from __future__ import annotations

import os

# How long idle OpenMP threads spin. Torch uses these threads for the operations without a Quire kernel. With libgomp's
# default of 300,000, they would take cores from Quire's kernel threads and from other processes.
SPIN_COUNT = 1000


def limit_spinning() -> None:
    """Sets SPIN_COUNT, unless the environment has another count. Call it before torch is imported: libgomp reads the
    environment at that moment."""
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
