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

Only decode steps of few sequences use it, because it wins there and loses where much KV is read (ADR 36 has the figures
of an H200). `launches_of` decides when a step's graph is recorded.

Weights that a step writes, as `dequantize.py` does, may only be read by kernels without `launch_pdl`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import triton
import triton.language as tl
from triton.runtime import driver

# Decode steps of up to this many sequences use dependent launch. The environment variable sets another number, to
# compare; 0: no step.
VARIABLE = "QUIRE_DEPENDENT_LAUNCH"
MOST_SEQUENCES = 4
LEAST_CAPABILITY = 90  # times ten

ON: Mapping[str, bool] = {"PDL": True, "launch_pdl": True}
OFF: Mapping[str, bool] = {"PDL": False}
_arguments = OFF


def launch_arguments() -> Mapping[str, bool]:
    """Returns keyword arguments for each launch of a kernel that takes `PDL`."""
    return _arguments


@contextmanager
def launches_of(num_sequences: int) -> Iterator[None]:
    """In this context, all launches belong to a decode step of `num_sequences` sequences on the current device. Whether
    they are dependent follows from this number. Only one thread of a process may launch kernels meanwhile."""
    global _arguments
    _arguments = ON if num_sequences <= _most_sequences() else OFF
    try:
        yield
    finally:
        _arguments = OFF


@cache
def _most_sequences() -> int:
    if triton.knobs.runtime.interpret or driver.active.get_current_target().arch < LEAST_CAPABILITY:
        return 0
    return most_sequences(os.environ)


def most_sequences(environment: Mapping[str, str]) -> int:
    """Returns the number of sequences up to which decode steps use dependent launch. Raises ValueError if the
    environment variable is not a number."""
    value = environment.get(VARIABLE, str(MOST_SEQUENCES))
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{VARIABLE} is {value!r}; it must be a number of sequences")
    return int(value)


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
