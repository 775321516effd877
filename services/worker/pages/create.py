"""Which implementation copies pages on which device."""

from __future__ import annotations

from collections.abc import Sequence

from services.worker.ops import KVPages, Ops
from services.worker.pages.page_copies import PageCopies, PlainPageCopies


def create_page_copies(ops: Ops, pages: Sequence[KVPages], num_slots: int) -> PageCopies:
    """By a kernel where there is one."""
    if ops.name == "triton":
        from services.worker.pages.device_page_copies import DevicePageCopies

        return DevicePageCopies(pages, num_slots)
    return PlainPageCopies(pages, num_slots)
