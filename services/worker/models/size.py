"""Computes a model's size from its configuration."""

from __future__ import annotations

import math

from services.worker.models.config import ModelConfig
from services.worker.models.encoder_config import EncoderConfig
from services.worker.quantization import ALL_KINDS, DENSE, AtLoad, Computed


def num_parameters(model: ModelConfig | EncoderConfig) -> int:
    """Returns the number of parameters; tied embeddings count once."""
    return sum(map(math.prod, model.parameters.values()))


def num_active_parameters(model: ModelConfig | EncoderConfig) -> int:
    """Returns the number of parameters that the forward pass of one token takes: all but the experts that it does not
    choose. Embeddings count, as in most model cards."""
    idle = sum((one.num_experts - one.num_chosen) * one.num_parameters for one in model.declaration.mixtures)
    return num_parameters(model) - idle


def weight_bytes(
    model: ModelConfig | EncoderConfig,
    element_bytes: int,
    at_load: AtLoad | None = None,
    computed: Computed = ALL_KINDS,
) -> int:
    """Returns the memory of all weights in bytes, without what kernels add to align them. Matrices are quantized as in
    the checkpoint, or else by `at_load`. A value that is not quantized takes `element_bytes`, and so does one of a kind
    that is not in `computed`. Raises ModelError if a quantized format cannot hold a matrix of the model's sizes."""
    is_tied = isinstance(model, ModelConfig) and model.network.tie_word_embeddings
    declaration = model.declaration
    total = 0
    for name, shape in model.parameters.items():
        num_bytes = math.prod(shape) * element_bytes
        if name in declaration.matrices:
            form = DENSE if model.quantization is None else model.quantization.format_of(name)
            if form is DENSE and at_load is not None and at_load.applies(name, is_tied):
                form = at_load.form
            footprint = form.footprint(*shape)
            kinds = computed.experts if name in declaration.of_experts else computed.matrices
            if footprint is not None and footprint.kind in kinds and name not in declaration.absorbed:
                num_bytes = footprint.num_bytes
        total += num_bytes
    return total


def kv_bytes_per_token(model: ModelConfig, element_bytes: int, tensor_parallel_size: int = 1) -> int:
    """Returns the bytes of keys and values over all layers, per rank. Ranks split the KV heads; if there are fewer KV
    heads than ranks, each rank has a copy of one."""
    elements = 0
    for heads in model.attention:
        kv_heads = -(-heads.num_kv_heads // tensor_parallel_size)
        elements += kv_heads * (heads.num_elements // heads.num_kv_heads)
    return elements * element_bytes
