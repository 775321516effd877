"""Computes a model's size from its configuration."""

from __future__ import annotations

import math

from services.worker.architectures.config import ModelConfig
from services.worker.architectures.weight_shapes import parameters
from services.worker.quantization import DENSE, AtLoad, stored_bytes


def num_parameters(model: ModelConfig) -> int:
    """Returns the number of parameters of a decoder. Tied embeddings count once."""
    heads, kv_heads = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = model.hidden_size * (2 * heads + 2 * kv_heads)
    biases = model.qkv_bias * (heads + 2 * kv_heads) + model.output_bias * model.hidden_size
    mlp = 3 * model.hidden_size * model.intermediate_size
    biases += model.mlp_bias * (2 * model.intermediate_size + model.hidden_size)
    norms = 2 * model.hidden_size + model.qk_norm * 2 * model.head_dim
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return len(model.layers) * (attention + mlp + biases + norms) + embeddings + model.hidden_size


def weight_bytes(model: ModelConfig, element_bytes: int, at_load: AtLoad | None = None) -> int:
    """Returns the size of all weights in bytes. Matrices are quantized as in the checkpoint, or else by `at_load`. Each
    value that is not quantized takes `element_bytes`. Raises ModelError if a quantized format cannot hold a matrix of
    the model's sizes."""
    total = 0
    for name, shape in parameters(model).items():
        form = DENSE if model.quantization is None else model.quantization.format_of(name)
        if len(shape) == 2 and form is DENSE and at_load and at_load.applies(name, model.tie_word_embeddings):
            form = at_load.form
        is_quantized = len(shape) == 2 and form is not DENSE
        total += stored_bytes(form.stored(*shape)) if is_quantized else math.prod(shape) * element_bytes
    return total


def kv_bytes_per_token(model: ModelConfig, element_bytes: int, tensor_parallel_size: int = 1) -> int:
    """Returns the size in bytes of one token's keys and values over all layers, on one rank. Ranks split the KV heads;
    if there are fewer KV heads than ranks, each rank has a copy of one KV head."""
    kv_heads = -(-model.num_kv_heads // tensor_parallel_size)
    return 2 * len(model.layers) * kv_heads * model.head_dim * element_bytes
