"""Runs all layers of a step in one call to `layers.c`, without Python in between. The result has the same bits as with
one call per operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor, get_num_threads

from services.worker.architectures import ModelConfig
from services.worker.ops.cpu.checks import MAX_HEAD_DIM, check_batch, check_pages
from services.worker.ops.cpu.library import Library
from services.worker.ops.cpu.linear import PackedLinear, is_plain
from services.worker.ops.cpu.quantized_linear import QuantizedLinear
from services.worker.ops.interface import AttentionBatch, KVPages, Layer


class LinearStruct(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("order", "zeros", "weight", "scales", "bias")),
        *((name, c_int64) for name in ("in_features", "out_features", "depth", "group_size")),
        ("bits", c_int32),
        ("flag", c_int32),
    ]


class LayerStruct(Structure):
    _fields_ = [
        *((name, LinearStruct) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("q_norm", "k_norm", "post_attention_norm", "next_norm", "cos_sin")),
        ("window", c_int64),
    ]


class StepStruct(Structure):
    _fields_ = [
        *((name, c_void_p) for name in (
            "layers", "key_pages", "value_pages", "key_blocks", "value_blocks", "positions", "query_starts",
            "block_tables", "sampled", "x", "residual", "scratch", "y",
        )),
        *((name, c_int64) for name in (
            "num_layers", "tokens", "num_sampled", "sequences", "max_blocks", "hidden", "intermediate", "heads",
            "kv_heads", "head_dim", "block_size",
        )),
        ("eps", c_float),
        ("scale", c_float),
        ("threads", c_int32),
    ]  # fmt: skip


class FusedLayers:
    """See `interface.RunLayers`."""

    def __init__(
        self, library: Library, config: ModelConfig, layers: Sequence[Layer], rotations: Sequence[Tensor], norm: Tensor
    ) -> None:
        """`rotations`: `cos_sin` of each layer; `norm`: weight of the norm after the last layer. Keeps references to
        all tensors to which the C structs point."""
        self._library = library
        self._config = config
        self._kept = (layers, rotations, norm)
        following = [layer.input_norm for layer in layers[1:]] + [norm]
        self._layers = (LayerStruct * len(layers))(*map(_describe, layers, following, rotations))
        self._pages: Sequence[KVPages] = ()

    @staticmethod
    def takes(config: ModelConfig, layers: Sequence[Layer]) -> bool:
        """Returns whether `layers.c` can run the layers: whether each projection is a single matrix, and whether the
        head size is supported."""
        if config.head_dim > MAX_HEAD_DIM or config.head_dim % 2:
            return False
        linears = (linear for layer in layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down))
        return all(isinstance(linear, PackedLinear | QuantizedLinear) for linear in linears)

    def __call__(
        self, x: Tensor, residual: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], sampled: Tensor
    ) -> Tensor:
        config = self._config
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
            len(sampled), batch.block_tables.shape[0], batch.block_tables.shape[1], hidden, config.intermediate_size,
            config.num_heads, config.num_kv_heads, config.head_dim, pages[0].block_size, config.rms_norm_eps,
            config.head_dim**-0.5, get_num_threads(),
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
        keys = torch.tensor([layer.keys.data_ptr() for layer in pages], dtype=torch.int64)
        values = torch.tensor([layer.values.data_ptr() for layer in pages], dtype=torch.int64)
        key_blocks = torch.tensor([layer.keys.stride(0) for layer in pages], dtype=torch.int64)
        value_blocks = torch.tensor([layer.values.stride(0) for layer in pages], dtype=torch.int64)
        self._tables = (keys, values, key_blocks, value_blocks)
        self._pointers = (addressof(self._layers), *(table.data_ptr() for table in self._tables))


def _describe(layer: Layer, next_norm: Tensor, cos_sin: Tensor) -> LayerStruct:
    norms = (layer.q_norm, layer.k_norm, layer.post_attention_norm, next_norm, cos_sin)
    return LayerStruct(
        *map(_describe_linear, (layer.qkv, layer.output, layer.gate_up, layer.down)),
        *(None if norm is None else norm.data_ptr() for norm in norms),
        layer.config.sliding_window or 0,
    )


def _describe_linear(linear: object) -> LinearStruct:
    assert isinstance(linear, PackedLinear | QuantizedLinear)
    return LinearStruct(**linear.description())
