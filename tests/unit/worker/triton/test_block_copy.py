"""Copies of pages between blocks, to the host, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from services.worker.ops.interface import KVPages
from services.worker.ops.triton.block_copy import PagePlace, copy_blocks, copy_pages
from services.worker.ops.triton.token_ids import fill_last_tokens

LAYERS, BLOCKS = 3, 9


def filled_pages(device: torch.device, dtype: torch.dtype, page: tuple[int, int, int]) -> list[KVPages]:
    """Every element of every page of every layer another number, as far as `dtype` has them."""

    def tensor(start: int) -> torch.Tensor:
        numbers = torch.arange(BLOCKS * page[0] * page[1] * page[2]) + start
        return (numbers % 251 if dtype.itemsize == 1 else numbers).view(BLOCKS, *page).to(device, dtype)

    return [KVPages(tensor(1000 * layer), tensor(1000 * layer + 500_000)) for layer in range(LAYERS)]


def stacked(pages: list[KVPages]) -> torch.Tensor:
    """[blocks, 2 · layers, *page] on the host, the bytes of one element as they are."""
    tensors = torch.stack([tensor for layer in pages for tensor in (layer.keys, layer.values)], dim=1)
    return tensors.cpu().clone()


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


# Pages of 1 KiB, and of more words than one program copies, with a part of a tile at the end.
@pytest.mark.parametrize("page", [(2, 8, 16), (3, 16, 400)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_blocks_are_copied_in_all_layers(device: torch.device, dtype: torch.dtype, page: tuple[int, int, int]) -> None:
    pages = filled_pages(device, dtype, page)
    expected = stacked(pages)
    expected[[8, 0]] = expected[[3, 3]]
    copy_blocks(PagePlace.of_device(pages), column(3, 3), column(8, 0))
    assert torch.equal(stacked(pages), expected)


def test_all_are_read_before_any_is_written(device: torch.device) -> None:
    """A chain and a cycle, in which each destination is a source as well."""
    pages = filled_pages(device, torch.float32, (2, 8, 16))
    expected = stacked(pages)
    expected[[1, 2, 3, 6, 7]] = expected[[0, 1, 2, 7, 6]]
    copy_blocks(PagePlace.of_device(pages), column(0, 1, 2, 7, 6), column(1, 2, 3, 6, 7))
    assert torch.equal(stacked(pages), expected)


def test_blocks_go_to_the_host_and_come_back_elsewhere(device: torch.device) -> None:
    pages = filled_pages(device, torch.bfloat16, (2, 8, 16))
    before = stacked(pages)
    slots = torch.zeros((4, before[0].numel()), dtype=torch.bfloat16, pin_memory=device.type == "cuda")
    blocks = PagePlace.of_device(pages)
    host = PagePlace.of_slots(slots, blocks.sizes, device)

    def indices(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=device)

    copy_pages(blocks, indices(5, 0), host, indices(3, 1))
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(slots[[3, 1]], before[[5, 0]].flatten(1))
    assert not slots[[0, 2]].any()
    copy_pages(host, indices(1, 3), blocks, indices(2, 7))
    expected = before.clone()
    expected[[2, 7]] = before[[0, 5]]
    assert torch.equal(stacked(pages), expected)


def test_nothing_to_copy_is_no_launch(device: torch.device) -> None:
    pages = filled_pages(device, torch.float32, (2, 8, 16))
    before = stacked(pages)
    copy_blocks(PagePlace.of_device(pages), column(), column())
    assert torch.equal(stacked(pages), before)


def test_pages_that_the_kernel_would_misread_are_refused(device: torch.device) -> None:
    pages = filled_pages(device, torch.float32, (2, 8, 16))
    with pytest.raises(ValueError, match="one number of blocks"):
        PagePlace.of_device([*pages, KVPages(pages[0].keys[1:], pages[0].values[1:])])
    with pytest.raises(ValueError, match="not a multiple of 16"):
        PagePlace.of_device(filled_pages(device, torch.uint8, (1, 3, 5)))
    with pytest.raises(ValueError, match="contiguous"):
        PagePlace.of_slots(torch.zeros(8, 6, device=device).t(), [32], device)
    with pytest.raises(ValueError, match="one page of each"):
        PagePlace.of_slots(torch.zeros(2, 8, device=device), [16], device)


def test_last_tokens_take_the_places_left_for_them(device: torch.device) -> None:
    last = torch.arange(100, 110, device=device)
    token_ids = torch.tensor([7, -1, 0, -10, -4, 3] * 200, device=device)
    fill_last_tokens(token_ids, last)
    assert token_ids.tolist() == [7, 100, 0, 109, 103, 3] * 200
