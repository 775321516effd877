"""Tensors that say "cuda", and the memory that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DEVICE = torch.device("cuda", 0)
RUBBISH = 0x7F  # of every byte: large integers, and no number in 8 bits


class RefusedError(AssertionError):
    """What a GPU would refuse, wait for, or answer wrongly."""


class Allocation:
    """Device memory that lasts as long as a tensor over it."""

    def __init__(self, grow: Callable[[int], None], num_bytes: int) -> None:
        """`grow` takes bytes, or gives them back; it raises OutOfMemoryError."""
        self._grow, self._num_bytes = grow, 0
        grow(num_bytes)
        self._num_bytes = num_bytes

    def __del__(self) -> None:
        self._grow(-self._num_bytes)


class DeviceTensor(Tensor):
    """One in device memory. `held`: its values, in the host's."""

    held: Tensor
    memory: Allocation

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor, memory: Allocation) -> DeviceTensor:
        with torch.inference_mode(False):  # in which torch makes no views of tensors from outside of it
            tensor: DeviceTensor = Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                device=DEVICE,
            )  # fmt: skip
        tensor.held, tensor.memory = inner, memory
        return tensor

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RefusedError(f"{func} on the device, on a thread that has none")


def spoil(tensor: Tensor) -> None:
    """Fills it with what nobody computed."""
    if tensor.dtype is torch.bool:
        tensor.fill_(True)
    elif tensor.dtype.is_floating_point and tensor.itemsize > 1:
        tensor.fill_(torch.nan)
    else:
        tensor.view(torch.uint8).fill_(RUBBISH)


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, DeviceTensor) else leaf


def is_host(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and not isinstance(leaf, DeviceTensor)
