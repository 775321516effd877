"""Modules of transformers whose computation is a layer of Quire's.

What a module computes is found by trying it on a few random numbers, and not by its name. So a norm that transformers
gets tomorrow is found as well, and one that differs in a detail is left as it is.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from services.worker.models.generic.modules import ACTIVATIONS
from services.worker.ops import Activation

_TOKENS = 6
# So that a wrong `eps` shows, some inputs are small.
_MAGNITUDES = (1.0, 1e-3, 1e-2, 0.1, 10.0, 100.0)
_SIZE, _INNER = 6, 10  # of the layers with which a gated MLP is tried


@dataclass(frozen=True, slots=True)
class NormForm:
    """See `RMSNorm` and `LayerNorm`. Weight and bias are the module's own."""

    is_rms: bool
    eps: float
    plus: float


@dataclass(frozen=True, slots=True)
class GatedForm:
    """See `GatedMLP`. The names are those of the module's linear layers."""

    gate_up: tuple[str, ...]
    down: str
    activation: Activation


def norm_form(module: nn.Module) -> NormForm | None:
    """Returns how Quire computes the module's norm; None if the module is no norm that Quire computes."""
    parameters = dict(module.named_parameters())
    shapes = {tuple(parameter.shape) for parameter in parameters.values()}
    if not {"weight"} <= set(parameters) <= {"weight", "bias"} or module._buffers or module._modules:
        return None
    if len(shapes) != 1 or len(size := shapes.pop()) != 1 or not _takes_one_tensor(module):
        return None
    random = torch.Generator().manual_seed(0)
    values = {name: torch.rand(size, generator=random) for name in parameters}
    x = torch.randn(_TOKENS, *size, generator=random) * torch.tensor(_MAGNITUDES)[:, None]
    output = _try(lambda: functional_call(module, values, (x,)))
    for eps, plus in itertools.product(sorted(_small_floats(module)), (0.0, 1.0)):
        weight, bias = values["weight"] + plus, values.get("bias")
        if bias is None and _agree(output, functional.rms_norm(x, size, weight, eps)):
            return NormForm(True, eps, plus)
        if _agree(output, functional.layer_norm(x, size, weight, bias, eps)):
            return NormForm(False, eps, plus)
    return None


def gated_form(module: nn.Module) -> GatedForm | None:
    """Returns how Quire computes the module; None if the module is no gated MLP."""
    layers = {name: child for name, child in module.named_children() if isinstance(child, nn.Linear)}
    if len(layers) not in (2, 3) or list(module.parameters(recurse=False)) or not _takes_one_tensor(module):
        return None
    if any(not isinstance(child, nn.Linear) and list(child.parameters()) for child in module.children()):
        return None
    random = torch.Generator().manual_seed(0)
    x = torch.randn(_TOKENS, _SIZE, generator=random)
    for *gate_up, down in itertools.permutations(layers):
        outputs = 2 * _INNER // len(gate_up)
        small = {name: _small_linear(_SIZE, outputs, random) for name in gate_up}
        small[down] = _small_linear(_INNER, _SIZE, random)
        output = _try(lambda: _with_layers(module, small)(x))  # noqa: B023 - called at once
        gate, up = torch.cat([small[name](x) for name in gate_up], dim=-1).chunk(2, dim=-1)
        for activation, kind in ACTIVATIONS.items():
            if _agree(output, small[down](activation()(gate) * up)):
                return GatedForm(tuple(gate_up), down, kind)
    return None


def _takes_one_tensor(module: nn.Module) -> bool:
    return len(inspect.signature(module.forward).parameters) == 1


def _small_floats(module: nn.Module) -> Iterator[float]:
    """Yields what can be the module's eps."""
    for value in vars(module).values():
        if isinstance(value, float) and 0 < value <= 0.1:
            yield value


def _small_linear(inputs: int, outputs: int, random: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    layer.weight = nn.Parameter(torch.randn(outputs, inputs, generator=random), requires_grad=False)
    return layer


def _with_layers(module: nn.Module, layers: dict[str, nn.Linear]) -> nn.Module:
    """Returns a copy of the module with other linear layers."""
    changed = copy.copy(module)
    changed._modules = {**module._modules, **layers}
    return changed


def _try(compute: Callable[[], Any]) -> Tensor | None:
    """Returns what `compute` returns; None if it raises an error, since anything can be wrong with a module tried with
    other sizes than its own."""
    try:
        output = compute()
    except Exception:
        return None
    return output if isinstance(output, Tensor) else None


def _agree(output: Tensor | None, expected: Tensor) -> bool:
    return (
        output is not None and output.shape == expected.shape and torch.allclose(output, expected, rtol=1e-4, atol=1e-5)
    )
