"""One specialization of a kernel, as it is served: what `compile.py` compiles ahead of time.

Every module of this package that holds kernels has `variants() -> Iterator[Variant]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TARGETS = (80, 86, 89, 90)  # compute capabilities, times ten


@dataclass(frozen=True, slots=True)
class Variant:
    name: str  # kernel first, then what tells this one from its others
    kernel: Any  # triton.JITFunction
    # Type of every parameter that is no constexpr: "*bf16", "fp32", "i32". Integers that are multiples of 16 wherever
    # the variant is served say so: "i32:16". Pointers are multiples of 16 bytes, as torch allocates, but for those that
    # the kernel asks Triton not to specialize on alignment.
    signature: Mapping[str, str]
    constexprs: Mapping[str, object]
    num_warps: int
    num_stages: int
    capabilities: tuple[int, ...] = TARGETS
    # That an iteration of the loop around its products reads from memory, if that is what bounds it.
    loop_bytes: int = 0
