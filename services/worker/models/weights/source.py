"""Where a decoder's weights come from, in forms that the operations compute with.

No source holds more than what it has read ahead: the operations keep each weight in their own layout, the only copy.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from services.worker.errors import ModelError
from services.worker.ops import Ops
from services.worker.quantization import AtLoad
from services.worker.quantization.kinds import Int4Weight, QuantizedWeight, Weight

logger = logging.getLogger(__name__)


class WeightSource(Protocol):
    """Names are those of `parameters`. Each is taken once, and belongs to the caller from then on."""

    def weight(self, layer: str) -> Weight:
        """A layer's matrix as it is stored, on the device."""
        ...

    def vector(self, name: str) -> Tensor:
        """A norm's or bias's values in the checkpoint's type, on the device."""
        ...


class QuantizingSource:
    """Quantizes what another source has in floats."""

    def __init__(self, source: WeightSource, scheme: AtLoad, ops: Ops, tied: bool) -> None:
        self._source, self._scheme, self._ops, self._tied = source, scheme, ops, tied
        self._told = False

    def weight(self, layer: str) -> Weight:
        """With activations in floats where the operations quantize none. Raises ModelError if they would undo it."""
        weight = self._source.weight(layer)
        if not isinstance(weight, Tensor) or not self._scheme.applies(layer, self._tied):
            return weight
        quantized = self._scheme.form.quantize(weight)
        computed = quantized if isinstance(quantized, Tensor) else in_a_form_of(quantized, self._ops)
        if computed is None or isinstance(computed, Tensor):
            raise ModelError(
                f"--quantization {self._scheme.name} rounds weights to a form that the {self._ops.name} operations do "
                "not compute with: it would cost precision and save nothing; leave it out"
            )
        if computed is not quantized and not self._told:
            self._told = True
            logger.warning(
                "the %s operations multiply no activations in %s here: they stay in %s, weights alone are quantized",
                self._ops.name, self._scheme.name, str(self._ops.dtype).removeprefix("torch."),
            )  # fmt: skip
        return computed

    def vector(self, name: str) -> Tensor:
        return self._source.vector(name)


class NativeSource:
    """Hands on the kinds that `ops` computes with, and the others in floats: the one place where that is done."""

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
                "the %s operations do not compute with the checkpoint's quantized weights (%s): they are turned into "
                "%s, which takes the memory of an unquantized model",
                self._ops.name, type(weight).__name__, str(self._ops.dtype).removeprefix("torch."),
            )  # fmt: skip
        return weight.dequantize().to(self._ops.dtype)

    def vector(self, name: str) -> Tensor:
        return self._source.vector(name)


def in_a_form_of(weight: QuantizedWeight, ops: Ops) -> QuantizedWeight | None:
    """The weight as `ops` compute with it: with activations left in floats where they do not take quantized ones, which
    only makes the product more precise. None if they do not compute with it at all."""
    if ops.computes_with(weight):
        return weight
    if not isinstance(weight, Int4Weight) and weight.quantize_activations:
        weights_alone = replace(weight, quantize_activations=False)
        if ops.computes_with(weights_alone):
            return weights_alone
    return None
