"""Runs all layers of a step in one call to `layers.c`, without Python in between. The result has the same bits as with
one call per operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, byref

import torch
from torch import Tensor, get_num_threads

from services.worker.ops.cpu.checks import MAX_HEAD_DIM, check_batch, check_form, check_pages, is_plain
from services.worker.ops.cpu.library import Library
from services.worker.ops.cpu.linear import PackedLinear
from services.worker.ops.cpu.quantized_linear import QuantizedLinear
from services.worker.ops.cpu.structs import LayerStruct, LinearStruct, StepStruct
from services.worker.ops.interface import AttentionBatch, KVPages, Layer


class FusedLayers:
    """See `interface.RunLayers`."""

    def __init__(self, library: Library, layers: Sequence[Layer], norm: Tensor) -> None:
        """`norm`: the norm after the last layer. Keeps references to all that C points to."""
        self._library = library
        self._layer = layers[0]  # for the sizes, which all layers share
        self._kept = (layers, norm)
        following = [layer.input_norm for layer in layers[1:]] + [norm]
        self._layers = (LayerStruct * len(layers))(*map(_describe, layers, following))
        self._intermediate = self._layers[0].down.in_features
        self._pages: Sequence[KVPages] = ()

    @staticmethod
    def takes(layers: Sequence[Layer]) -> bool:
        """Returns whether all layers have the same sizes, every projection is one matrix, and attention supports the
        head size."""
        sizes = {(layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.rms_norm_eps) for layer in layers}
        linears = (linear for layer in layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down))
        return (
            len(sizes) == 1
            and layers[0].head_dim <= MAX_HEAD_DIM
            and all(isinstance(linear, PackedLinear | QuantizedLinear) for linear in linears)
            and len({(layer.down.in_features, layer.down.out_features) for layer in layers}) == 1  # type: ignore[attr-defined]
        )

    def __call__(
        self, x: Tensor, residual: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], sampled: Tensor
    ) -> Tensor:
        layer = self._layer
        if pages is not self._pages:
            self._point_to(pages)
        check_batch(batch, x.shape[0])
        if not is_plain(x) or not is_plain(residual) or residual.shape != x.shape or sampled.dtype is not torch.int64:
            raise ValueError("x and residual must be contiguous float32 of the same shape, and sampled must be int64")
        tokens, hidden = x.shape
        y = x.new_empty((len(sampled), hidden))
        step = StepStruct(
            *self._pointers, batch.positions.data_ptr(), batch.query_starts.data_ptr(), batch.block_tables.data_ptr(),
            sampled.data_ptr(), x.data_ptr(), residual.data_ptr(), 0, y.data_ptr(), len(self._layers), tokens,
            len(sampled), batch.block_tables.shape[0], batch.block_tables.shape[1], hidden, self._intermediate,
            layer.num_heads, layer.num_kv_heads, layer.head_dim, pages[0].block_size, layer.rms_norm_eps,
            get_num_threads(),
        )  # fmt: skip
        scratch = x.new_empty(self._library.functions.quire_scratch_floats(byref(step)))
        step.scratch = scratch.data_ptr()
        if self._library.functions.quire_run_layers(byref(step)):
            raise MemoryError(f"out of memory for a step of {tokens} tokens")
        return y

    def _point_to(self, pages: Sequence[KVPages]) -> None:
        for layer in pages:
            check_pages(layer)
        self._pages = pages
        places = ([layer.keys for layer in pages], [layer.values for layer in pages])
        addresses = [[x.data_ptr() for x in tensors] for tensors in places]
        strides = [[x.stride(0) for x in tensors] for tensors in places]
        self._tables = [torch.tensor(table, dtype=torch.int64) for table in (*addresses, *strides)]
        self._pointers = (addressof(self._layers), *(table.data_ptr() for table in self._tables))


def _describe(layer: Layer, next_norm: Tensor) -> LayerStruct:
    form, rotation = layer.form, layer.rotation
    check_form(form, layer.num_heads)
    cos_sin = None if rotation is None else rotation.cos_sin
    tensors = (layer.q_norm, layer.k_norm, layer.post_attention_norm, next_norm, cos_sin, form.slopes, form.sinks)
    return LayerStruct(
        *map(_describe_linear, (layer.qkv, layer.output, layer.gate_up, layer.down)),
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        0 if cos_sin is None else cos_sin.shape[1],
        form.sliding_window or 0,
        form.chunk or 0,
        form.scale,
        form.soft_cap or 0.0,
        rotation is not None and rotation.interleaved,
        layer.activation,
    )


def _describe_linear(linear: object) -> LinearStruct:
    assert isinstance(linear, PackedLinear | QuantizedLinear)
    return LinearStruct(**linear.description())
