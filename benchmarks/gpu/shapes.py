"""Shapes of the measured models. Their weights are random and created on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.shapes import Shape
from services.worker.models import LlamaConfig, ModelConfig

LLAMA_8B = Shape(
    128_256, 4096, 14_336, 32, 32, 8, 131_072, tie_word_embeddings=False, rope_theta=500_000.0, dtype="bfloat16"
)
LLAMA_1B = Shape(128_256, 2048, 8192, 16, 32, 8, 131_072, rope_theta=500_000.0, dtype="bfloat16")
QWEN_32B = Shape(
    152_064, 5120, 27_648, 64, 40, 8, 40_960, tie_word_embeddings=False, rope_theta=1_000_000.0, dtype="bfloat16"
)
SHAPES = {"llama-8b": LLAMA_8B, "llama-1b": LLAMA_1B, "qwen-32b": QWEN_32B}
# For dry runs: a head size of 16 and some thousands of parameters.
TINY = Shape(256, 32, 64, 2, 2, 1, 512, tie_word_embeddings=False)

# Formats that only checkpoints have. Dummy weights have the format that the configuration names.
_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
}
AT_LOAD = ("fp8", "int8", "int8-weight-only")
QUANTIZATIONS = (*AT_LOAD, *_CHECKPOINTS)


def network(model: ModelConfig) -> LlamaConfig:
    """Returns the sizes of a measured model; all of them are of Llama's kind."""
    assert isinstance(model.network, LlamaConfig)
    return model.network


def quantized(shape: Shape, method: str | None) -> Shape:
    """Returns the shape of a checkpoint with this method, or the shape itself if weights are quantized at load."""
    if method not in _CHECKPOINTS:
        return shape
    group_size = min(128, shape.hidden_size)
    return replace(shape, quantization_config=_CHECKPOINTS[method] | {"group_size": group_size})
