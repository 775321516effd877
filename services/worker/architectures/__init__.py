"""Reads a model's config.json: its family, its sizes, and the names and shapes of its weights.

Imports no torch.
"""

from services.worker.architectures.config import (
    GenerationDefaults,
    LayerConfig,
    ModelConfig,
    parse_model_config,
    read_model_config,
)
from services.worker.architectures.encoder_config import EncoderConfig, read_encoder_config
from services.worker.architectures.rope import RopeConfig
from services.worker.architectures.size import kv_bytes_per_token, num_parameters, weight_bytes
from services.worker.architectures.weight_shapes import Parameter, parameters

__all__ = [
    "EncoderConfig",
    "GenerationDefaults",
    "LayerConfig",
    "ModelConfig",
    "Parameter",
    "RopeConfig",
    "kv_bytes_per_token",
    "num_parameters",
    "parameters",
    "parse_model_config",
    "read_encoder_config",
    "read_model_config",
    "weight_bytes",
]
