"""Creates the page copies that GPUs use."""

from __future__ import annotations

from collections.abc import Sequence

from services.worker.ops import KVPages
from services.worker.pages.page_copies import PageCopies


def create_device_page_copies(pages: Sequence[KVPages], num_slots: int) -> PageCopies:
    """Creates the page copies. Imports Triton here, because only a worker on a GPU needs it."""
    from services.worker.pages.device_page_copies import DevicePageCopies

    return DevicePageCopies(pages, num_slots)
