"""A specialization of a kernel that serving uses. `compile.py` compiles it ahead of time.

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
    # Type of every parameter that is not a constexpr: "*bf16", "fp32", "i32". Integers that are always multiples of 16
    # when the variant is served are marked: "i32:16". Pointers are multiples of 16 bytes, as torch allocates them,
    # except those that the kernel excludes from specialization by alignment.
    signature: Mapping[str, str]
    constexprs: Mapping[str, object]
    num_warps: int
    num_stages: int
    capabilities: tuple[int, ...] = TARGETS
    # Bytes read from memory per iteration of the kernel's inner loop; 0 if memory is not the bound.
    loop_bytes: int = 0
