"""Which launches of a kernel share what Triton compiles, by its own words: no rule of it is repeated here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

WARP = 32  # threads


def form_of(
    kernel: InterpretedFunction, args: Sequence[object], kwargs: Mapping[str, object], capability: tuple[int, int]
) -> str:
    """Of one launch on a device of that capability. A kernel is compiled anew for each form that it comes in: types,
    values of constants, which integers are 1 or multiples of 16, which addresses are multiples of 16, and warps."""
    _, specialization, options = _binder(kernel, capability)(*args, **kwargs)
    return f"{kernel.__name__} {specialization} {options}"


@cache
def _binder(kernel: InterpretedFunction, capability: tuple[int, int]) -> Callable[..., Any]:
    function = JITFunction(kernel.fn, **kernel.kwargs)
    backend = make_backend(GPUTarget("cuda", 10 * capability[0] + capability[1], WARP))
    binder: Callable[..., Any] = create_function_from_signature(function.signature, function.params, backend)
    return binder
