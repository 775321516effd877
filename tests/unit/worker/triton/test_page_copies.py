"""Both ways to copy blocks do the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from services.worker.ops.interface import KVPages
from services.worker.pages.device_page_copies import DevicePageCopies
from services.worker.pages.page_copies import PageCopies, PlainPageCopies


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def make_pages(device: torch.device) -> list[KVPages]:
    """Layers of one shape, one with narrower values, and a latent one."""

    def tensor(seed: int, *page: int) -> torch.Tensor:
        return torch.randn((6, *page), generator=torch.Generator().manual_seed(seed)).to(device)

    pages = [KVPages(tensor(2 * layer, 2, 4, 16), tensor(2 * layer + 1, 2, 4, 16)) for layer in range(2)]
    keys = tensor(10, 1, 4, 24)
    return [
        *pages,
        KVPages(tensor(8, 3, 4, 16), tensor(9, 3, 4, 8)),
        KVPages(keys, keys[..., :20], is_latent=True),
    ]


def snapshot(pages: Sequence[KVPages]) -> torch.Tensor:
    """[blocks, elements of a block]"""
    return torch.cat([tensor.flatten(1) for layer in pages for tensor in layer.tensors], dim=1).cpu().clone()


@pytest.mark.parametrize("plain", [True, False])
def test_blocks_move_and_come_back(device: torch.device, plain: bool) -> None:
    pages = make_pages(device)
    copies: PageCopies = (PlainPageCopies if plain else DevicePageCopies)(pages, 5)
    assert copies.num_slots == 5
    expected = snapshot(pages)
    before = expected.clone()
    copies.save(column(0, 4), column(3, 1))
    copies.copy(column(1, 2, 5), column(2, 1, 0))  # two change places
    expected[[2, 1, 0]] = before[[1, 2, 5]]
    assert torch.equal(snapshot(pages), expected)
    copies.load(column(1, 3), column(3, 5))
    expected[[3, 5]] = before[[4, 0]]
    assert torch.equal(snapshot(pages), expected)
