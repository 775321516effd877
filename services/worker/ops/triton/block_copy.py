"""Copies whole KV pages, keys and values of all layers, in one launch: between blocks, to the host, and back.

The kernel finds pages by a table of base addresses, one per tensor (the keys or the values of a layer), and a stride
from block to block: page b of tensor t is at bases[t] + b · stride (`PagePlace`). Pages in pinned host memory are found
in the same way: with unified addressing (CUDA C++ Programming Guide, section 6.2.13) a kernel can access them by their
ordinary pointers. So a swap is one launch for any number of blocks and layers, with no staging copy and no work per
block on the host. It runs on the same stream as the steps, so it is ordered with them. With cudaMemcpyAsync, each block
would take 2 · layers calls, of about 32 KiB each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.interface import KVPages
from services.worker.ops.transfers import upload
from services.worker.ops.triton.variant import Variant

BLOCK = 2048  # words of 8 bytes
NUM_WARPS = 8
WORD = 8


@triton.jit
def copy_pages_kernel(
    source_bases,  # int64 [num_tensors], addresses that are multiples of 16
    destination_bases,  # int64 [num_tensors]
    sources,  # int64 [n]
    destinations,  # int64 [n]
    source_stride,  # words
    destination_stride,  # words
    page_words,
    BLOCK: tl.constexpr,
):
    copy, tensor = tl.program_id(0), tl.program_id(1)
    words = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = words < page_words
    source = tl.load(source_bases + tensor).to(tl.pointer_type(tl.int64))
    destination = tl.load(destination_bases + tensor).to(tl.pointer_type(tl.int64))
    source = tl.multiple_of(source, 16) + tl.load(sources + copy) * source_stride
    destination = tl.multiple_of(destination, 16) + tl.load(destinations + copy) * destination_stride
    tl.store(destination + words, tl.load(source + words, mask=mask), mask=mask)


@dataclass(frozen=True, slots=True)
class PagePlace:
    """The place of pages that `copy_pages` reads or writes. It holds only addresses and does not keep the memory alive.
    `stride` (from block to block) and `page_words` are in words of 8 bytes."""

    bases: Tensor  # int64 [num_tensors], on the device
    stride: int
    page_words: int

    @classmethod
    def of_device(cls, pages: Sequence[KVPages]) -> PagePlace:
        """Returns the place of all layers' pages. Raises ValueError if the layers' tensors differ in shape or type, if
        a tensor is not contiguous, or if a tensor's address or the size of a page is no multiple of 16 bytes."""
        tensors = [tensor for layer in pages for tensor in (layer.keys, layer.values)]
        first = tensors[0]
        if any(t.shape != first.shape or t.dtype != first.dtype or not t.is_contiguous() for t in tensors):
            raise ValueError("the pages of all layers must have one shape and type and be contiguous")
        size = first[0].numel() * first.itemsize
        return cls(_addresses([tensor.data_ptr() for tensor in tensors], first.device), _words(size), _words(size))

    @classmethod
    def of_slots(cls, slots: Tensor, device: torch.device) -> PagePlace:
        """Returns the place of the pages in a tensor [num_slots, num_tensors, *page], which is in pinned host memory or
        on the device. Raises ValueError as `of_device` does."""
        if not slots.is_contiguous():
            raise ValueError("slots must be contiguous")
        size = slots[0, 0].numel() * slots.itemsize
        bases = [slots.data_ptr() + index * size for index in range(slots.shape[1])]
        return cls(_addresses(bases, device), _words(size * slots.shape[1]), _words(size))


def copy_pages(source: PagePlace, sources: Tensor, destination: PagePlace, destinations: Tensor) -> None:
    """Copies, for all tensors, page sources[i] of `source` to page destinations[i] of `destination`. Both index tensors
    are int64 [n] on the device.

    No page may be both read and written, because pages are copied in any order. Within one place use `copy_blocks`.
    """
    if not len(sources):
        return
    grid = (len(sources), len(source.bases), triton.cdiv(source.page_words, BLOCK))
    copy_pages_kernel[grid](
        source.bases, destination.bases, sources, destinations, source.stride, destination.stride, source.page_words,
        BLOCK=BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip


def copy_blocks(place: PagePlace, sources: NDArray[np.int64], destinations: NDArray[np.int64]) -> None:
    """Copies blocks `sources` to blocks `destinations` of the same place, [n] each on the host. Reads all sources
    before it writes any destination.

    A step's plan copies only to blocks that no other sequence uses. So usually no destination is also a source, and
    the pages can be copied in any order. But a block that one sequence releases can be both a source and a destination
    in the same plan. Then all pages are copied to a buffer first.
    """
    device = place.bases.device
    if not np.isin(destinations, sources).any():
        copy_pages(place, upload(sources, device), place, upload(destinations, device))
        return
    shape = (len(sources), len(place.bases), place.page_words)
    buffer = PagePlace.of_slots(staging := torch.empty(shape, dtype=torch.int64, device=device), device)
    rows = torch.arange(len(staging), device=device)
    copy_pages(place, upload(sources, device), buffer, rows)
    copy_pages(buffer, rows, place, upload(destinations, device))


def _addresses(values: list[int], device: torch.device) -> Tensor:
    if any(value % 16 for value in values):
        raise ValueError("pages must begin at multiples of 16 bytes")
    return upload(np.array(values, np.int64), device)


def _words(size: int) -> int:
    if size % 16:
        raise ValueError(f"a page of {size} bytes is not a multiple of 16")
    return size // WORD


def variants() -> Iterator[Variant]:
    tables = dict.fromkeys(("source_bases", "destination_bases", "sources", "destinations"), "*i64")
    sizes = dict.fromkeys(("source_stride", "destination_stride", "page_words"), "i32:16")
    yield Variant("copy_pages", copy_pages_kernel, {**tables, **sizes}, {"BLOCK": BLOCK}, NUM_WARPS, num_stages=3)
