"""Peers that torch compiles are compiled for every shape that is measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu.fresh_compiler import fresh_compiler

NUM_SHAPES = 12  # more than torch keeps of one function


class Counter:
    """A backend that runs the graph as it is."""

    def __init__(self) -> None:
        self.num_compiled = 0

    def __call__(self, graph: Any, _inputs: Any) -> Any:
        self.num_compiled += 1
        return graph.forward


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_every_shape_is_compiled_and_none_is_run_uncompiled_in_silence() -> None:
    counter = Counter()
    for size in range(2, 2 + NUM_SHAPES):
        with fresh_compiler():
            torch.compile(double, backend=counter, dynamic=False)(torch.ones(size))
    assert counter.num_compiled == NUM_SHAPES
    with fresh_compiler():
        compiled = torch.compile(double, backend=counter, dynamic=False)
        with pytest.raises(Exception, match="fail_on_recompile_limit_hit"):
            all(compiled(torch.ones(size)) is not None for size in range(2, 2 + NUM_SHAPES))
    torch.compiler.reset()
