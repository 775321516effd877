"""Arrays on their way to the device."""

from __future__ import annotations

import numpy as np
import torch

from services.worker.transfers.copies import upload, upload_into


def test_the_array_may_be_changed_at_once() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    there, given = upload(array, torch.device("cpu")), torch.full((2, 3), -1, dtype=torch.int32)
    assert upload_into(array, given) is given
    array.fill(7)
    for tensor in (there, given):
        assert tensor.dtype is torch.int32
        assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_nothing_is_an_array_too() -> None:
    assert upload(np.zeros(0, np.int64), torch.device("cpu")).shape == (0,)
