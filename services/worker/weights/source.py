"""Sources of a decoder's weights, in formats that the device's operations can compute with.

A source keeps only the weights that it has read ahead. Once a weight is taken, the operations have the only copy of it,
in their own layout.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from services.worker.errors import ModelError
from services.worker.ops import Ops
from services.worker.quantization import AtLoad
from services.worker.quantization.kinds import Fp8Weight, Int8Weight, QuantizedWeight, Weight

logger = logging.getLogger(__name__)


class WeightSource(Protocol):
    """Returns weights by their names in `Declaration.parameters`. The caller takes each weight once, and then owns
    it."""

    def weight(self, layer: str) -> Weight:
        """Returns a layer's matrix on the device, in the format of this source: floats or quantized."""
        ...

    def vector(self, name: str) -> Tensor:
        """Returns a norm, a bias or another tensor that is no layer's matrix. It is on the device, in the checkpoint's
        float type."""
        ...


class QuantizingSource:
    """Quantizes the floating-point weights of another source."""

    def __init__(
        self, source: WeightSource, scheme: AtLoad, ops: Ops, tied: bool, left_out: frozenset[str] = frozenset()
    ) -> None:
        """`left_out`: names of matrices that stay as they are."""
        self._source, self._scheme, self._ops, self._tied, self._left_out = source, scheme, ops, tied, left_out
        self._told = False

    def weight(self, layer: str) -> Weight:
        """Returns a layer's matrix. Quantizes a matrix of floats, unless it is left out. If `ops`
        cannot compute with quantized activations, only the weights are quantized. Raises ModelError if `ops` cannot
        compute with the quantized weights either."""
        weight = self._source.weight(layer)
        if not isinstance(weight, Tensor) or layer in self._left_out or not self._scheme.applies(layer, self._tied):
            return weight
        quantized = self._scheme.form.quantize(weight)
        computed = quantized if isinstance(quantized, Tensor) else in_a_form_of(quantized, self._ops)
        if computed is None or isinstance(computed, Tensor):
            raise ModelError(
                f"--quantization {self._scheme.name} rounds weights to a format that the {self._ops.name} operations "
                "cannot compute with: it would cost precision and save no memory; leave it out"
            )
        if computed is not quantized and not self._told:
            self._told = True
            logger.warning(
                "the %s operations cannot compute with %s activations: activations stay in %s, only weights are "
                "quantized",
                self._ops.name, self._scheme.name, str(self._ops.dtype).removeprefix("torch."),
            )  # fmt: skip
        return computed

    def vector(self, name: str) -> Tensor:
        return self._source.vector(name)


class NativeSource:
    """Passes on weights of another source if `ops` computes with their format, and turns all others into floats. No
    other class turns quantized weights into floats."""

    def __init__(self, source: WeightSource, ops: Ops) -> None:
        self._source, self._ops = source, ops
        self._told: set[type] = set()

    def weight(self, layer: str) -> Weight:
        weight = self._source.weight(layer)
        if isinstance(weight, Tensor):
            return weight
        computed = in_a_form_of(weight, self._ops)
        if computed is not None:
            return computed
        if type(weight) not in self._told:
            self._told.add(type(weight))
            logger.warning(
                "the %s operations do not compute with the checkpoint's quantized weights (%s), so these weights are "
                "turned into %s and take as much memory as in an unquantized model",
                self._ops.name, type(weight).__name__, str(self._ops.dtype).removeprefix("torch."),
            )  # fmt: skip
        return weight.dequantize().to(self._ops.dtype)

    def vector(self, name: str) -> Tensor:
        return self._source.vector(name)


def in_a_form_of(weight: QuantizedWeight, ops: Ops) -> QuantizedWeight | None:
    """Returns the weight as `ops` can compute with it, or None if `ops` cannot. If `ops` supports the weight's format
    only with float activations, the returned weight has `quantize_activations` False. Float activations make products
    more precise, never less."""
    if ops.computes_with(weight):
        return weight
    if isinstance(weight, Fp8Weight | Int8Weight) and weight.quantize_activations:
        weights_alone = replace(weight, quantize_activations=False)
        if ops.computes_with(weights_alone):
            return weights_alone
    return None
