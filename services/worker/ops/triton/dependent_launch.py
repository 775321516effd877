"""Programmatic dependent launch: a kernel starts while the kernel before it on the stream still drains.

(CUDA C++ Programming Guide, section on programmatic dependent launch; PTX ISA, `griddepcontrol`.) A kernel launched
with `launch_pdl` starts as soon as every program of the previous kernel has called `allow_next_launch` or has ended. It
then calls `wait_for_inputs`, which returns when the previous kernel has ended and its writes are visible.

Every kernel of a decode step follows three rules:

- It calls `allow_next_launch`: products and attention after their loops, the others first. The programs of the next
  kernel start only when all its own programs have got there, so they never take an SM from them. If products called it
  first, programs of several later kernels would wait on the SMs at once, and hold registers and shared memory.
- Every program calls `wait_for_inputs`, also one that has nothing to do.
- Before the wait, it touches only memory that no kernel writes after the weights are loaded: weights, scales, biases
  and the gains of norms. Its stores wait, too, because an earlier kernel may still read what they overwrite.

Then the order of the stream holds for all other memory. A kernel ends only after its own wait has returned, so after
the kernel before it has ended. So a wait returns only when all earlier kernels of the stream have ended, not only the
last one. Kernels launched without `launch_pdl`, such as those of cuBLAS and torch, start when all earlier work has
ended, and so do copies, events and other streams that wait for one. A kernel that never calls `allow_next_launch` holds
back the next kernel until it has ended.

Off by default: ADR 36 has what an H200 measured.

Weights that a step writes, as `dequantize.py` does, may only be read by kernels without `launch_pdl`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import triton
import triton.language as tl
from triton.runtime import driver

VARIABLE = "QUIRE_DEPENDENT_LAUNCH"  # "1" or "0"
ON_BY_DEFAULT = False
LEAST_CAPABILITY = 90  # times ten


@cache
def launch_arguments() -> Mapping[str, bool]:
    """Returns keyword arguments for each launch, on the current device, of a kernel that takes `PDL`. The first call
    decides for the process. Raises ValueError if the environment variable is neither "0" nor "1"."""
    if triton.knobs.runtime.interpret:
        return {"PDL": False}
    return arguments_for(driver.active.get_current_target().arch)


def arguments_for(capability: int) -> Mapping[str, bool]:
    """Returns the arguments for devices of this compute capability, times ten. Raises ValueError as
    `launch_arguments`."""
    value = os.environ.get(VARIABLE, "1" if ON_BY_DEFAULT else "0")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}; it must be 0 or 1")
    if value == "1" and capability >= LEAST_CAPABILITY:
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@triton.jit
def allow_next_launch(PDL: tl.constexpr):
    """Lets the next kernel of the stream start when every program of this kernel has called this function."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Waits until the previous kernel of the stream has ended and its writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()
