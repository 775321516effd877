"""Where torch lets a device of no hardware in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.simulated_gpu.tensors import DEVICE


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation of torch's on this thread: with its arguments, and those by name."""

    def __init__(self, operate: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operate = operate

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._operate(func, args, dict(kwargs or {}))


class NamedDevice(TorchFunctionMode):
    """Gives operations the device by its index, for which torch would ask CUDA. A `torch.device` made without an index
    stays without one, as on a real GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(_with_index, (args, kwargs or {}))
        if func is torch.tensor and "device" in kwargs:  # made where no mode sees it
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


def _with_index(leaf: Any) -> Any:
    return (
        DEVICE
        if (isinstance(leaf, str) and leaf == "cuda") or (isinstance(leaf, torch.device) and leaf.type == "cuda")
        else leaf
    )


class HostGenerator(torch.Generator):
    """The host's, whatever the device: it draws there."""

    def __new__(cls, device: object = None) -> HostGenerator:
        return super().__new__(cls)


@contextmanager
def guard_that_does_nothing() -> Iterator[None]:
    """Some of torch's methods make their tensor's device the current one, by what only a CUDA build has a table entry
    for. The CPU's does nothing, and stands for it."""
    cpu, cuda = 0, 1  # c10::DeviceType
    guards = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL("libc10.so"), "_ZN3c104impl26device_guard_impl_registryE")
    before, guards[cuda] = guards[cuda], guards[cpu]
    try:
        yield
    finally:
        guards[cuda] = before
