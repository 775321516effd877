"""Computes a model's size from its configuration."""

from __future__ import annotations

import math

from services.worker.models.config import ModelConfig
from services.worker.models.encoder_config import EncoderConfig
from services.worker.quantization import DENSE, AtLoad, stored_bytes


def num_parameters(model: ModelConfig) -> int:
    """Returns the number of parameters of a decoder; tied embeddings count once."""
    return sum(map(math.prod, model.parameters.values()))


def weight_bytes(model: ModelConfig | EncoderConfig, element_bytes: int, at_load: AtLoad | None = None) -> int:
    """Returns the size of all weights in bytes. Matrices are quantized as in the checkpoint, or else by `at_load`. Each
    value that is not quantized takes `element_bytes`. Raises ModelError if a quantized format cannot hold a matrix of
    the model's sizes."""
    is_tied = isinstance(model, ModelConfig) and model.network.tie_word_embeddings
    total = 0
    for name, shape in model.parameters.items():
        is_matrix = name in model.declaration.matrices
        form = DENSE if model.quantization is None else model.quantization.format_of(name)
        if is_matrix and form is DENSE and at_load and at_load.applies(name, is_tied):
            form = at_load.form
        is_quantized = is_matrix and form is not DENSE
        total += stored_bytes(form.stored(*shape)) if is_quantized else math.prod(shape) * element_bytes
    return total


def kv_bytes_per_token(model: ModelConfig, element_bytes: int, tensor_parallel_size: int = 1) -> int:
    """Returns the bytes of keys and values over all layers, per rank. Ranks split the KV heads; if there are fewer KV
    heads than ranks, each rank has a copy of one."""
    elements = 0
    for heads in model.attention:
        kv_heads = -(-heads.num_kv_heads // tensor_parallel_size)
        elements += kv_heads * (heads.num_elements // heads.num_kv_heads)
    return elements * element_bytes
