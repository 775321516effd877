"""Modules and weights that stand in transformers' models for its own, and compute with Quire's operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import activations
from transformers.pytorch_utils import Conv1D

from services.worker.models.generic.trial import CASTS
from services.worker.ops import Activation, Linear, Ops


class Direct(nn.Module):
    """A module that is called without torch's search for hooks. Nothing here registers any."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


def become(module: nn.Module, kind: type[nn.Module], **attributes: Any) -> None:
    """Makes `kind` the base class of the module's class, so that what the class itself computes stays."""
    own = type(module)
    module.__class__ = kind if own in (nn.Linear, nn.Embedding, Conv1D) else type(own.__name__, (own, kind), {})
    for name, value in attributes.items():
        setattr(module, name, value)


def compute_with(module: Any, layer: Callable[[Tensor], Tensor], ops: Ops) -> None:
    """Replaces the module's computation. `layer`: takes [tokens, features] in the operations' type."""
    own = type(module)
    module.__class__ = type(own.__name__, (RowsModule, own), {})
    module.layer, module.ops = layer, ops


def rows_of(x: Tensor, ops: Ops) -> Tensor:
    """[..., features] -> [tokens, features], contiguous, in the operations' type"""
    rows = x.reshape(-1, x.shape[-1])
    # Most are right already, and a call of torch takes longer than a comparison.
    if rows.dtype is not ops.dtype:
        rows = rows.to(ops.dtype)
    return rows if rows.is_contiguous() else rows.contiguous()


def like(rows: Tensor, x: Tensor) -> Tensor:
    """[tokens, features] -> [..., features], in x's type. `x`: [..., other features]."""
    if rows.dtype is not x.dtype:
        rows = rows.to(x.dtype)
    return rows.view(*x.shape[:-1], rows.shape[1])


class RowsModule(Direct):
    """See `compute_with`."""

    layer: Callable[[Tensor], Tensor]
    ops: Ops

    def forward(self, x: Tensor) -> Tensor:
        return like(self.layer(rows_of(x, self.ops)), x)


# torch computes the last elements of an array by another formula than the others, so that a token's activations would
# depend on its place in the batch.
ACTIVATIONS: Mapping[type[nn.Module], Activation] = {
    activations.SiLUActivation: Activation.SILU,
    nn.SiLU: Activation.SILU,
    activations.GELUActivation: Activation.GELU,
    activations.GELUTanh: Activation.GELU_TANH,
    activations.NewGELUActivation: Activation.GELU_TANH,
    activations.FastGELUActivation: Activation.GELU_TANH,
    activations.AccurateGELUActivation: Activation.GELU_TANH,
    activations.QuickGELUActivation: Activation.QUICK_GELU,
}


class ActivationModule(Direct):
    def __init__(self, ops: Ops, kind: Activation) -> None:
        super().__init__()
        self._ops, self._kind = ops, kind

    def forward(self, x: Tensor) -> Tensor:
        return self._ops.activation(x.reshape(-1, x.shape[-1]).contiguous(), self._kind).view(x.shape)


class Product(Tensor):
    """A weight without data. Linear products with it are Quire's, so that they are batch-invariant; routers of experts
    have such weights. A product in another type is computed in the operations' type."""

    product: Linear
    ops: Ops

    @classmethod
    def of(cls, product: Linear, shape: tuple[int, ...], ops: Ops) -> Product:
        weight: Product = torch.empty(shape, dtype=ops.dtype, device="meta").as_subclass(cls)
        weight.product, weight.ops = product, ops
        return weight

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in CASTS:
            return args[0]
        if function is functional.linear:
            x, weight, bias = (*args, None)[:3]
            # Rows with a gap between them: torch then computes row by row what follows, such as a sigmoid. Its formula
            # for the last elements of an array would else make a token's scores depend on its place in the batch.
            scores = x.new_empty(x.shape[:-1].numel(), weight.shape[0] + 1)[:, :-1]
            scores.copy_(weight.product(x.reshape(-1, x.shape[-1]).to(weight.ops.dtype)))
            return (scores if bias is None else scores.add_(bias)).unflatten(0, x.shape[:-1])
        # torch does not type it.
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class LinearModule(Direct, nn.Linear):
    product: Linear
    ops: Ops

    def forward(self, x: Tensor) -> Tensor:
        # The routers of some models compute in float32.
        return like(self.product(rows_of(x, self.ops)), x)


class EmbeddingModule(Direct, nn.Embedding):
    product: Linear
    ops: Ops

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.ops.embedding(token_ids.flatten(), self.product).view(*token_ids.shape, -1)


class Joined:
    """Products with one input. They are computed together, when the first of them is asked for."""

    def __init__(self, product: Linear, sizes: Sequence[int], ops: Ops) -> None:
        """`sizes`: outputs of each product."""
        self._product, self._sizes, self._ops = product, list(sizes), ops
        self._input: Tensor | None = None
        self._outputs: dict[int, Tensor] = {}  # those that nobody has taken, by the product's index

    def take(self, index: int, x: Tensor) -> Tensor:
        """Returns the outputs of one product, contiguous."""
        if x is not self._input or index not in self._outputs:
            outputs = self._product(rows_of(x, self._ops)).split_with_sizes(self._sizes, dim=-1)
            self._input, self._outputs = x, dict(enumerate(outputs))
        taken = self._outputs.pop(index)
        if not self._outputs:
            self._input = None
        return like(taken.contiguous(), x)


class JoinedModule(Direct, nn.Linear):
    joined: Joined
    index: int

    def forward(self, x: Tensor) -> Tensor:
        return self.joined.take(self.index, x)
