"""Copies whole KV pages, keys and values of all layers, in one launch: between blocks, to the host, and back.

The kernel finds pages by tables with one entry per tensor (the keys or the values of a layer): page b of tensor t is at
bases[t] + b · strides[t] (`PagePlace`). Pages of different tensors can differ in size. Pages in pinned host memory are
found in the same way: with unified addressing (CUDA C++ Programming Guide, section 6.2.13) a kernel can access them by
their ordinary pointers. So a swap is one launch for any number of blocks and layers, with no staging copy and no work
per block on the host. It runs on the same stream as the steps, so it is ordered with them. With cudaMemcpyAsync, each
block would take 2 · layers calls, of about 32 KiB each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.interface import KVPages
from services.worker.ops.triton.variant import Variant
from services.worker.transfers import upload

BLOCK = 2048  # words of 8 bytes
NUM_WARPS = 8
WORD = 8


@triton.jit
def copy_pages_kernel(
    source_bases,  # int64 [num_tensors], addresses that are multiples of 16
    destination_bases,  # int64 [num_tensors]
    sources,  # int64 [n]
    destinations,  # int64 [n]
    source_strides,  # int64 [num_tensors], even numbers of words
    destination_strides,  # int64 [num_tensors], even numbers of words
    page_words,  # int64 [num_tensors], words of a page
    BLOCK: tl.constexpr,
):
    copy, tensor = tl.program_id(0), tl.program_id(1)
    words = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = words < tl.load(page_words + tensor)
    source = tl.load(source_bases + tensor).to(tl.pointer_type(tl.int64))
    destination = tl.load(destination_bases + tensor).to(tl.pointer_type(tl.int64))
    source_stride = tl.multiple_of(tl.load(source_strides + tensor), 2)
    destination_stride = tl.multiple_of(tl.load(destination_strides + tensor), 2)
    source = tl.multiple_of(source, 16) + tl.load(sources + copy) * source_stride
    destination = tl.multiple_of(destination, 16) + tl.load(destinations + copy) * destination_stride
    tl.store(destination + words, tl.load(source + words, mask=mask), mask=mask)


@dataclass(frozen=True, slots=True)
class PagePlace:
    """The place of pages that `copy_pages` reads or writes. It holds only addresses and does not keep the memory alive.
    Sizes are in words of 8 bytes."""

    bases: Tensor  # int64 [num_tensors], on the device
    strides: Tensor  # int64 [num_tensors], on the device: words from block to block
    page_words: Tensor  # int64 [num_tensors], on the device
    sizes: tuple[int, ...]  # bytes of a page of each tensor

    @classmethod
    def of_device(cls, pages: Sequence[KVPages]) -> PagePlace:
        """Returns the place of all layers' pages. Raises ValueError if their numbers of blocks differ, if they are not
        contiguous, or if an address or the size of a page is no multiple of 16 bytes."""
        tensors = [tensor for layer in pages for tensor in layer.tensors]
        if any(len(t) != len(tensors[0]) or not t.is_contiguous() for t in tensors):
            raise ValueError("the pages of all layers must have one number of blocks and be contiguous")
        sizes = tuple(tensor[0].numel() * tensor.itemsize for tensor in tensors)
        return _create([tensor.data_ptr() for tensor in tensors], sizes, sizes, tensors[0].device)

    @classmethod
    def of_slots(cls, slots: Tensor, sizes: Sequence[int], device: torch.device) -> PagePlace:
        """Returns the place of the pages in `slots` [num_slots, elements of a block], which is in pinned host memory or
        on the device. A slot holds one page of each tensor, of `sizes` bytes. Raises ValueError as `of_device` does,
        and if the sizes do not add up to a slot."""
        num_bytes = slots.shape[1] * slots.itemsize
        if not slots.is_contiguous() or sum(sizes) != num_bytes:
            raise ValueError("slots must be contiguous and hold one page of each tensor")
        ends = list(itertools.accumulate(sizes, initial=slots.data_ptr()))
        return _create(ends[:-1], tuple(sizes), (num_bytes,) * len(sizes), device)


def _create(
    addresses: Sequence[int], sizes: tuple[int, ...], strides: Sequence[int], device: torch.device
) -> PagePlace:
    if any(address % 16 for address in addresses):
        raise ValueError("pages must begin at multiples of 16 bytes")
    if odd := [size for size in sizes if size % 16]:
        raise ValueError(f"a page of {odd[0]} bytes is not a multiple of 16")
    bases, in_words, pages = (
        upload(np.array(column, np.int64), device)
        for column in (addresses, [stride // WORD for stride in strides], [size // WORD for size in sizes])
    )
    return PagePlace(bases, in_words, pages, sizes)


def copy_pages(source: PagePlace, sources: Tensor, destination: PagePlace, destinations: Tensor) -> None:
    """Copies, for all tensors, page sources[i] of `source` to page destinations[i] of `destination`. Both index tensors
    are int64 [n] on the device.

    No page may be both read and written, because pages are copied in any order. Within one place use `copy_blocks`.
    """
    if not len(sources):
        return
    grid = (len(sources), len(source.bases), triton.cdiv(max(source.sizes) // WORD, BLOCK))
    copy_pages_kernel[grid](
        source.bases, destination.bases, sources, destinations, source.strides, destination.strides,
        source.page_words, BLOCK=BLOCK, num_warps=NUM_WARPS,
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
    staging = torch.empty((len(sources), sum(place.sizes) // WORD), dtype=torch.int64, device=device)
    buffer = PagePlace.of_slots(staging, place.sizes, device)
    rows = torch.arange(len(staging), device=device)
    copy_pages(place, upload(sources, device), buffer, rows)
    copy_pages(buffer, rows, place, upload(destinations, device))


def variants() -> Iterator[Variant]:
    names = ("source_bases", "destination_bases", "sources", "destinations", "source_strides", "destination_strides")
    tables = dict.fromkeys((*names, "page_words"), "*i64")
    yield Variant("copy_pages", copy_pages_kernel, tables, {"BLOCK": BLOCK}, NUM_WARPS, num_stages=3)
