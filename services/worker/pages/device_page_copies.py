"""Copies KV blocks with a kernel. Each call is one launch, whatever the number of blocks and layers."""

from __future__ import annotations

from collections.abc import Sequence

from services.worker.ops import KVPages
from services.worker.ops.triton import PagePlace, copy_blocks, copy_pages
from services.worker.pages.page_copies import allocate_slots, page_tensors
from services.worker.plan import I64
from services.worker.transfers import upload


class DevicePageCopies:
    """See `PageCopies`. The kernel reads and writes the slots in pinned host memory directly, by address."""

    def __init__(self, pages: Sequence[KVPages], num_slots: int) -> None:
        self.num_slots = num_slots
        self._tensors = page_tensors(pages)  # keeps the tensors alive, because a PagePlace holds only addresses
        self._device = self._tensors[0].device
        self._slots = allocate_slots(self._tensors, num_slots)
        self._blocks_at = PagePlace.of_device(pages)
        self._slots_at = PagePlace.of_slots(self._slots, self._blocks_at.sizes, self._device) if num_slots else None

    def save(self, blocks: I64, slots: I64) -> None:
        assert self._slots_at is not None, "without slots nothing is swapped"
        copy_pages(self._blocks_at, upload(blocks, self._device), self._slots_at, upload(slots, self._device))

    def load(self, slots: I64, blocks: I64) -> None:
        assert self._slots_at is not None, "without slots nothing is swapped"
        copy_pages(self._slots_at, upload(slots, self._device), self._blocks_at, upload(blocks, self._device))

    def copy(self, sources: I64, destinations: I64) -> None:
        copy_blocks(self._blocks_at, sources, destinations)
