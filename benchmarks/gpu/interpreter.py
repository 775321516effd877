"""Turns on Triton's interpreter for dry runs on machines without a GPU."""

from __future__ import annotations

import os
from functools import cache


@cache
def interpret_kernels() -> None:
    """Makes Triton interpret kernels. Must be called before any kernel is imported, because Triton decides then."""
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.interpreter import complete_the_interpreter

    complete_the_interpreter()
