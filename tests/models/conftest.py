from __future__ import annotations

from tests.unit.worker.conftest import batch_invariant

__all__ = ["batch_invariant"]
