"""Where torch lets a device of no hardware in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

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
        _check_generator(args, kwargs)
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


def _check_generator(args: Any, kwargs: Any) -> None:
    """Raises as torch does for a generator of another device than that of what is drawn."""
    leaves = tree_leaves((args, kwargs))
    generators = [leaf for leaf in leaves if isinstance(leaf, torch._C.Generator)]
    if not generators:
        return
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    device = kwargs.get("device") or (tensors[0].device if tensors else "cpu")
    drawn_on, wanted = getattr(generators[0], "drawn_on", "cpu"), torch.device(device).type
    if drawn_on != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{drawn_on}'")


class HostGenerator(torch.Generator):
    """Draws on the host, whatever its device, which must be that of what is drawn."""

    drawn_on: str  # a device's type

    def __new__(cls, device: object = "cpu") -> HostGenerator:
        kind = torch.device(device).type  # type: ignore[call-overload]
        generator: HostGenerator = super().__new__(cls)
        generator.drawn_on = kind
        return generator


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
