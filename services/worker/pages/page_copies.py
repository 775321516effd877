"""Copies KV blocks: to other blocks, to slots in host memory, and back.

Copies run on the device's compute stream in the order of the calls, and only these copies read the slots. So the host
never waits for a copy to end, and a block can be reused as soon as its copy is launched.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from services.worker.ops import KVPages
from services.worker.pages.mapped import mapped_zeros
from services.worker.pages.pinned import pinned_zeros
from services.worker.plan import I64


class PageCopies(Protocol):
    """Copies between KV blocks and slots in host memory. Arguments are int64 [n] indices on the host; no destination
    occurs twice."""

    num_slots: int  # slots in host memory, each for one block of all layers

    def save(self, blocks: I64, slots: I64) -> None:
        """Copies blocks to slots."""
        ...

    def load(self, slots: I64, blocks: I64) -> None:
        """Copies slots to blocks."""
        ...

    def copy(self, sources: I64, destinations: I64) -> None:
        """Copies blocks to blocks. Reads all sources before it writes any destination."""
        ...


class PlainPageCopies:
    """Copies by tensor indexing, with one or two operations per layer. On a CPU this is the fastest way."""

    def __init__(self, pages: Sequence[KVPages], num_slots: int) -> None:
        self.num_slots = num_slots
        self._pages = pages
        self._tensors = page_tensors(pages)
        self._device = self._tensors[0].device
        self._slots = allocate_slots(self._tensors, num_slots)
        ends = list(itertools.accumulate((tensor[0].numel() for tensor in self._tensors), initial=0))
        self._parts = list(map(slice, ends, ends[1:]))  # of a slot: the page of each tensor

    def save(self, blocks: I64, slots: I64) -> None:
        where, to = self._indices(blocks), torch.from_numpy(slots)
        for tensor, part in zip(self._tensors, self._parts, strict=True):
            self._slots[to, part] = tensor[where].flatten(1).cpu()

    def load(self, slots: I64, blocks: I64) -> None:
        where, saved = self._indices(blocks), self._slots[torch.from_numpy(slots)].to(self._device)
        for tensor, part in zip(self._tensors, self._parts, strict=True):
            tensor[where] = saved[:, part].view(-1, *tensor.shape[1:])

    def copy(self, sources: I64, destinations: I64) -> None:
        for layer in self._pages:
            layer.copy_blocks(self._indices(sources), self._indices(destinations))

    def _indices(self, values: I64) -> Tensor:
        return torch.from_numpy(values).to(self._device)


class NoPageCopies:
    """See `PageCopies`. For an encoder, which has no KV cache and so nothing to copy."""

    num_slots = 0

    def save(self, blocks: I64, slots: I64) -> None:
        """See `PageCopies`."""

    def load(self, slots: I64, blocks: I64) -> None:
        """See `PageCopies`."""

    def copy(self, sources: I64, destinations: I64) -> None:
        """See `PageCopies`."""


def page_tensors(pages: Sequence[KVPages]) -> list[Tensor]:
    """Returns the tensors of all layers' pages, layer by layer. All have one type."""
    return [tensor for layer in pages for tensor in layer.tensors]


def allocate_slots(tensors: Sequence[Tensor], num_slots: int) -> Tensor:
    """Returns zeros in host memory, [num_slots, elements of a block]: a slot holds one page of each tensor. The memory
    is pinned if the tensors are on a GPU."""
    first, shape = tensors[0], (num_slots, sum(tensor[0].numel() for tensor in tensors))
    if first.is_cuda and num_slots > 0:
        return pinned_zeros(shape, first.dtype)
    return mapped_zeros(shape, first.dtype)
