"""Creates the page copies that GPUs use."""

from __future__ import annotations

from collections.abc import Sequence

from services.worker.ops import KVPages
from services.worker.pages.page_copies import PageCopies


def create_device_page_copies(pages: Sequence[KVPages], num_slots: int) -> PageCopies:
    """Returns the `PageCopies` of a GPU. Triton is imported only when this is called, because a CPU worker does not
    need it."""
    from services.worker.pages.device_page_copies import DevicePageCopies

    return DevicePageCopies(pages, num_slots)
