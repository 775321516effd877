"""Runs layers of the common kind whose products take activations of 8 bits (W8A8), with fewer launches.

The kernel that computes a product's input also quantizes it: norms the inputs of qkv and gate_up, the activation the
input of down. So a layer quantizes by itself only the attention's output, because its scale spans all heads, which
different programs compute.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from services.worker.ops import interface
from services.worker.ops.interface import AttentionBatch, KVPages, Layer, Ops
from services.worker.ops.layer_parts import attend, norms_after
from services.worker.ops.triton.activation import gated_activation, gated_activation_quantized
from services.worker.ops.triton.quantize_rows import QuantizedRows
from services.worker.ops.triton.quantized_linear import EightBitLinear
from services.worker.ops.triton.rms_norm import add_rms_norm, add_rms_norm_quantized

Input = Tensor | QuantizedRows


class QuantizedLayers:
    """See `interface.RunLayers`. Some products may take activations in floats."""

    def __init__(self, ops: Ops, layers: Sequence[Layer], norm: Tensor) -> None:
        self._ops, self._layers = ops, layers
        self._following = norms_after(layers, norm)

    @staticmethod
    def takes(layers: Sequence[Layer]) -> bool:
        """Returns whether a product takes a quantized input that another kernel can write."""
        return any(
            isinstance(linear, EightBitLinear) for layer in layers for linear in (layer.qkv, layer.gate_up, layer.down)
        )

    def __call__(
        self, x: Tensor, residual: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], sampled: Tensor
    ) -> Tensor:
        following = [layer.qkv for layer in self._layers[1:]]
        given: Input = x
        for index, layer in enumerate(self._layers[:-1]):
            attended = attend(self._ops, layer, _product(layer.qkv, given), batch, pages[index])
            x = self._rest(layer, attended, residual)
            given = _norm(x, residual, self._following[index], layer.rms_norm_eps, following[index])
        last = self._layers[-1]
        attended = attend(self._ops, last, _product(last.qkv, given), batch, pages[-1])
        residual = residual[sampled]  # from here on only these tokens are needed
        x = self._rest(last, attended[sampled], residual)
        return add_rms_norm(x, residual, self._following[-1], last.rms_norm_eps)

    def _rest(self, layer: Layer, attended: Tensor, residual: Tensor) -> Tensor:
        """Adds the attention's output to the residual, and returns the MLP's output."""
        x = layer.output(attended)
        normed = _norm(x, residual, layer.post_attention_norm, layer.rms_norm_eps, layer.gate_up)
        gate_up = _product(layer.gate_up, normed)
        if isinstance(layer.down, EightBitLinear):
            return layer.down(gated_activation_quantized(gate_up, layer.activation, layer.down.input_dtype))
        return layer.down(gated_activation(gate_up, layer.activation))


def _norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, user: interface.Linear) -> Input:
    """Adds x to the residual in place, and returns the norm of the sum, as `user` takes it."""
    if isinstance(user, EightBitLinear):
        return add_rms_norm_quantized(x, residual, weight, eps, user.input_dtype)
    return add_rms_norm(x, residual, weight, eps)


def _product(linear: interface.Linear, x: Input) -> Tensor:
    if isinstance(linear, EightBitLinear):
        return linear(x)
    assert isinstance(x, Tensor), "made for this product"
    return linear(x)
