"""Variant: one of the specializations of a kernel that are launched when models are served. `compile.py` compiles the
variants ahead of time.

Every module of this package with kernels has a function `variants() -> Iterator[Variant]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TARGETS = (80, 86, 89, 90)  # compute capabilities, times ten


@dataclass(frozen=True, slots=True)
class Variant:
    name: str  # the kernel's name, then what distinguishes the variant: "draw greedy bf16 32000"
    kernel: Any  # triton.JITFunction
    # Type of every parameter that is not a constexpr: "*bf16", "fp32" or "i32". The mark in "i32:16" says that the
    # integer is a multiple of 16 in every launch of the variant. Pointers need no mark: they are taken to be aligned to
    # 16 bytes, as torch allocates memory, unless the kernel lists them in do_not_specialize_on_alignment.
    signature: Mapping[str, str]
    # All constexprs but PDL (`dependent_launch.py`). `compile.py` adds it as most steps do: without dependent launch.
    constexprs: Mapping[str, object]
    num_warps: int
    num_stages: int
    capabilities: tuple[int, ...] = TARGETS
    # Bytes read from memory per iteration of the kernel's inner loop; 0 if the kernel is not memory-bound.
    loop_bytes: int = 0
