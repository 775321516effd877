"""Graphs: operations and launches that are repeated on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.simulated_gpu.tensors import DeviceTensor


@dataclass(slots=True)
class Graph:
    """What was launched while it was recorded."""

    launches: list[Callable[[], object]] = field(default_factory=list)
    num_replays: int = 0

    def replay(self) -> None:
        self.num_replays += 1
        for launch in self.launches:
            launch()


def repeat(func: Any, args: Any, kwargs: Any, fresh: list[Tensor], alive: list[DeviceTensor]) -> None:
    """Repeats an operation, results to where they were. `alive`: what must be, as long as the graph is."""
    for tensor, value in zip(fresh, _new(func(*args, **kwargs), args, kwargs), strict=True):
        tensor.copy_(value)


def _new(out: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Those results that are no part of an argument."""
    given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    return [tensor for tensor in tensors if tensor.untyped_storage()._cdata not in given]


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Those arguments that an operation writes to."""
    arguments = func._schema.arguments
    values = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | dict(kwargs)
    names = [argument.name for argument in arguments if argument.alias_info and argument.alias_info.is_write]
    return [values[name] for name in names if isinstance(values.get(name), Tensor)]
