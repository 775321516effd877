"""Compiles kernels in parallel processes that do not use the GPU, before the kernels are measured.

A process calls the same functions that launch the kernels later, with tensors of torch's meta device, which have no
memory. Every launch in such a process only compiles its kernel, for the same types and constants as the later launch.
The binary goes to Triton's cache on disk, where the later launch finds it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

META = torch.device("meta")


class _Target:
    """Takes the place of Triton's driver, which would need a GPU, in a process that only compiles."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def processes(capability: int, imports: Collection[str]) -> ProcessPoolExecutor:
    """Returns a pool with one process per core, in which launches only compile. `capability`: the GPU's compute
    capability, times ten. `imports`: modules that are imported once, before the processes are forked."""
    # A server without threads or a CUDA context forks the processes. Importing torch in each of them takes longer.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *imports])
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), context, only_compile, (capability,))


def only_compile(capability: int) -> None:
    """From now on, launches in this process only compile their kernels for this compute capability."""
    torch.set_num_threads(1)
    driver.set_active(_Target(capability))
    run = JITFunction.run

    def compile_it(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compile_it
